// Queries that are known beforehand, and their answers as tensors.
#pragma once
#include <utility>
#include <vector>

#include "common/tensor.h"
#include "exchange/exchange.h"

namespace gld::exchange {

class SingleRound : public Exchange {
 public:
  struct Question {
    int partition;
    rpc::OutgoingValue query;
    // Of the answer's tensors: the first extent of each; kAnyLength, or kMayBeAbsent, whatever its length.
    std::vector<int64_t> lengths;
  };
  static constexpr int64_t kAnyLength = -1, kMayBeAbsent = -2;
  explicit SingleRound(std::vector<Question> questions)
      : questions_(std::move(questions)), answers_(questions_.size()) {}

  std::vector<Asked> next() override;
  void take(size_t i, const rpc::IncomingValue& answer) override;
  // In the order of the questions.
  const std::vector<std::vector<Tensor>>& answers() const { return answers_; }

 private:
  const std::vector<Question> questions_;
  std::vector<std::vector<Tensor>> answers_;
  bool is_asked_ = false;
};

}  // namespace gld::exchange
