// What an engine's thread, its loop and threads that wait for answers have for each other.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/frame.h"

namespace gld::rpc {

class Stream;

// What happened to a stream.
struct Event {
  enum class What {
    kFrame,      // a frame came
    kSent,       // the memory of a message is needed no more
    kMalformed,  // the peer broke the protocol; nothing more is read
    kMismatch,   // it speaks another version
    kOffer,      // a payload lies in a region (the token), which might be lent if the peer were offered it
    kRoom,       // no more waits to be sent than somebody wants to hear of
    kClosed,     // the socket is closed, and all memory is given back; nothing follows
  };
  uint64_t stream = 0;
  What what = What::kClosed;
  Frame frame;
  uint64_t token = 0;
  std::string text;  // why; of kClosed nothing where this side closed it
};

// An event counter, used as a bell.
class Bell {
 public:
  Bell();  // throws std::system_error
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;
  int fd() const { return fd_; }
  void ring() const;
  void hush() const;

 private:
  const int fd_;
};

// Sockets and a bell behind one descriptor, which can be read when one of them can be.
class Watch {
 public:
  Watch();  // throws std::system_error
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  int fd() const { return fd_; }
  void ring() const { bell_.ring(); }
  // False: it cannot be watched, with the reason in errno.
  bool add(int socket, uint64_t id) const;
  void remove(int socket) const;
  // The ids of sockets that can be read, some of them where there are very many. The bell is silent afterwards.
  std::vector<uint64_t> ready() const;

 private:
  const int fd_;
  const Bell bell_;
};

// All methods may be called from any thread.
class Mailbox {
 public:
  // The engine's thread is to look after a stream.
  void queue_for_engine(std::shared_ptr<Stream> stream);
  std::vector<std::shared_ptr<Stream>> take_streams();
  // The engine's thread is to end; nothing is queued for it any more.
  void stop();
  bool is_stopping();

  // The loop is to handle events, in order; `events` is empty afterwards. It is awake where `by_loop`.
  void queue_for_loop(std::vector<Event>& events, bool by_loop = false);
  std::vector<Event> take_events();

  const Bell to_engine;
  const Watch loop;  // what wakes the loop

 private:
  std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<Event> events_;
  bool is_stopping_ = false;
};

}  // namespace gld::rpc
