// The answer to a query, for a thread that waits for it.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rpc/query_client.h"

namespace gld::rpc {

// All methods may be called from any thread.
class PendingAnswer : public std::enable_shared_from_this<PendingAnswer> {
 public:
  // Asks. Throws as QueryClient::ask.
  static std::shared_ptr<PendingAnswer> ask(std::shared_ptr<QueryClient> client, const std::shared_ptr<Stream>& stream,
                                            const std::string& service, const OutgoingValue& query,
                                            Clock::time_point deadline);
  // What is lent and was not taken goes back.
  ~PendingAnswer();
  PendingAnswer(const PendingAnswer&) = delete;
  PendingAnswer& operator=(const PendingAnswer&) = delete;
  // Whether it is over: answered, failed or called off.
  bool is_over();
  // Waits for that; false where `deadline` passed before. `check` is called now and then: what it throws ends the wait.
  bool wait(Clock::time_point deadline, const std::function<void()>& check);
  // How it ended; nothing before, where it was called off, and once it was taken. The answer's memory is the caller's;
  // one that is lent must be followed by borrowed(), when the region that it lies in is needed no more to find it.
  std::optional<QueryOutcome> take();
  void borrowed();
  // Nobody wants it any more; false where it was over.
  bool call_off();
  bool is_called_off();

 private:
  PendingAnswer(std::shared_ptr<QueryClient> client, std::shared_ptr<Stream> stream)
      : client_(std::move(client)), stream_(std::move(stream)) {}
  void end(QueryOutcome outcome);

  const std::shared_ptr<QueryClient> client_;
  const std::shared_ptr<Stream> stream_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  uint64_t query_ = 0;
  bool is_over_ = false, is_called_off_ = false;
  std::optional<uint64_t> lent_in_;  // the peer's region that its payload lies in, until that is borrowed
  std::optional<QueryOutcome> outcome_;
};

}  // namespace gld::rpc
