#include "exchange/single_round.h"

#include "common/error.h"
#include "exchange/queries.h"
#include "rpc/frame.h"

namespace gld::exchange {

std::vector<Asked> SingleRound::next() {
  std::vector<Asked> asked;
  if (is_asked_) return asked;
  is_asked_ = true;
  for (const Question& question : questions_) asked.push_back({question.partition, question.query});
  return asked;
}

void SingleRound::take(size_t i, const rpc::IncomingValue& answer) {
  const std::vector<int64_t>& lengths = questions_.at(i).lengths;
  std::vector<Tensor> tensors = decode_answer(answer, lengths.size());
  for (size_t t = 0; t < lengths.size(); ++t) {
    if (lengths[t] == kMayBeAbsent) continue;
    const bool has_rows = tensors[t].defined() && !tensors[t].shape.empty();
    if (!has_rows || (lengths[t] != kAnyLength && tensors[t].shape[0] != lengths[t]))
      throw rpc::ProtocolError(message("answer: expected rows for ", lengths[t], " ids as tensor ", t, ", got ",
                                       has_rows ? tensors[t].shape[0] : -1));
  }
  answers_[i] = std::move(tensors);
}

}  // namespace gld::exchange
