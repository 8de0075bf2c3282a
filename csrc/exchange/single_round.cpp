#include "exchange/single_round.h"

#include "exchange/queries.h"

namespace gld::exchange {

std::vector<Asked> SingleRound::next() {
  std::vector<Asked> asked;
  if (is_asked_) return asked;
  is_asked_ = true;
  for (const Question& question : questions_) asked.push_back({question.partition, question.query});
  return asked;
}

void SingleRound::take(size_t i, const rpc::IncomingValue& answer) {
  answers_.at(i) = decode_answer(answer, questions_.at(i).num_tensors);
}

}  // namespace gld::exchange
