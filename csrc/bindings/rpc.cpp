#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/os_error.h"
#include "bindings/signals.h"
#include "rpc/engine.h"
#include "rpc/pending_answer.h"

namespace py = pybind11;

namespace gld {
namespace {

using rpc::Engine;
using rpc::Event;
using rpc::PendingAnswer;
using rpc::Stream;

constexpr double kForeverS = 1e9;

// Keeps what is lent.
struct LentPayload {
  std::shared_ptr<const void> owner;
};

py::bytes as_bytes(std::string_view text) { return {text.data(), text.size()}; }

std::unique_ptr<Engine> make_engine(double heartbeat_interval_s, double heartbeat_timeout_s, uint64_t max_payload_bytes,
                                    int num_threads, size_t max_waiting, std::string own_name) {
  if (num_threads < 1) throw InvalidArgument(message("num_threads: expected at least 1, got ", num_threads));
  rpc::QueryServerSettings for_queries;
  for_queries.num_threads = num_threads;
  for_queries.max_waiting = max_waiting;
  for_queries.own_name = std::move(own_name);
  return as_os_error([&] {
    return std::make_unique<Engine>(rpc::EngineSettings{heartbeat_interval_s, heartbeat_timeout_s, max_payload_bytes},
                                    std::move(for_queries));
  });
}

// The GIL is kept: what is written at once is small, and getting the GIL back can take longer than writing.
bool send(Stream& stream, uint64_t token, const py::sequence& parts) {
  const BufferViews views(parts);
  std::vector<iovec> memory;
  memory.reserve(views.get().size());
  for (const Py_buffer& view : views.get()) memory.push_back({view.buf, static_cast<size_t>(view.len)});
  return stream.send(token, std::move(memory));
}

const char* name_of(Event::What what) {
  switch (what) {
    case Event::What::kFrame:
      return "frame";
    case Event::What::kSent:
      return "sent";
    case Event::What::kMalformed:
      return "malformed";
    case Event::What::kMismatch:
      return "mismatch";
    case Event::What::kOffer:
      return "offer";
    case Event::What::kRoom:
      return "room";
    case Event::What::kClosed:
      return "closed";
  }
  return "";
}

// Header fields, head, payload.
py::tuple as_tuple(rpc::Frame& frame) {
  const rpc::Header& header = frame.header;
  py::object payload = py::none();
  if (frame.payload != nullptr)
    payload = py::cast(Buffer{std::move(frame.payload), static_cast<size_t>(header.payload_bytes)});
  py::tuple fields = py::make_tuple(header.kind, header.flags, header.request_id, header.head_bytes, header.deadline_ms,
                                    header.payload_bytes);
  return py::make_tuple(fields, py::bytes(frame.head), payload);
}

py::tuple as_tuple(Event& event) {
  switch (event.what) {
    case Event::What::kFrame:
      return py::make_tuple(event.stream, name_of(event.what), as_tuple(event.frame));
    case Event::What::kOffer:
    case Event::What::kSent:
      return py::make_tuple(event.stream, name_of(event.what), event.token);
    default:
      return py::make_tuple(event.stream, name_of(event.what), event.text);
  }
}

rpc::Clock::time_point deadline_of(double timeout_s) {
  const std::chrono::duration<double> limit(std::clamp(timeout_s, 0.0, kForeverS));
  return rpc::Clock::now() + std::chrono::duration_cast<rpc::Clock::duration>(limit);
}

py::object take_answer(PendingAnswer& pending) {
  std::optional<rpc::QueryOutcome> outcome = pending.take();
  if (!outcome) return py::none();
  switch (outcome->what) {
    case rpc::QueryOutcome::What::kLost:
      return py::make_tuple("lost", outcome->why, py::none());
    case rpc::QueryOutcome::What::kLate:
      return py::make_tuple("late", "", py::none());
    default:
      break;
  }
  rpc::Frame& frame = outcome->frame;
  std::string_view meta, head;
  try {
    std::tie(meta, head) = rpc::split_head(frame.head);
  } catch (const rpc::ProtocolError& error) {
    return py::make_tuple("garbled", error.what(), py::none());
  }
  if (outcome->what == rpc::QueryOutcome::What::kFailed) return py::make_tuple("failed", as_bytes(meta), py::none());
  py::object payload = py::none();
  if ((frame.header.flags & rpc::kFlagArena) != 0) {
    try {
      payload = py::make_tuple(rpc::read_place(meta), frame.header.payload_bytes);
    } catch (const rpc::ProtocolError& error) {
      return py::make_tuple("garbled", error.what(), py::none());
    }
    return py::make_tuple("lent", as_bytes(head), payload);
  }
  if (frame.payload != nullptr)
    payload = py::cast(Buffer{std::move(frame.payload), static_cast<size_t>(frame.header.payload_bytes)});
  return py::make_tuple("answered", as_bytes(head), payload);
}

std::shared_ptr<PendingAnswer> ask(Engine& engine, const std::shared_ptr<Stream>& stream, const std::string& service,
                                   const py::bytes& head, double timeout_s) {
  const rpc::OutgoingValue query{std::string(head), {}};
  return PendingAnswer::ask(engine.queries().client, stream, service, query, deadline_of(timeout_s));
}

py::object await_answer(Stream& stream, uint64_t request_id, double timeout_s) {
  const auto deadline = deadline_of(timeout_s);
  std::optional<rpc::Frame> frame;
  {
    GilReleased no_gil;  // that is what waiting is for
    frame = stream.await_answer(request_id, deadline, check_signals);
  }
  return frame ? py::object(as_tuple(*frame)) : py::none();
}

py::list poll(Engine& engine) {
  py::list out;
  for (Event& event : engine.poll()) out.append(as_tuple(event));
  return out;
}

}  // namespace

void bind_rpc(py::module_& m) {
  py::class_<LentPayload>(m, "LentPayload", "A payload that a peer may read.")
      .def("release", [](LentPayload& self) { self.owner.reset(); }, "It does not any more. Idempotent.");
  py::class_<Stream, std::shared_ptr<Stream>>(m, "RpcStream", "One socket's frames, both ways.")
      .def_property_readonly("id", [](const Stream& self) { return self.id; })
      .def("send", &send, py::arg("token"), py::arg("parts"),
           "Sends the parts, one after the other. True: they are with the kernel. False: keep them alive and as they "
           "are until an event names the token, or the stream is closed.")
      .def("taken", &Stream::taken, py::arg("nbytes"),
           "Frames of so many bytes, headers and heads included, have been dealt with.")
      .def("lift_limits", &Stream::lift_limits, py::arg("peer_limit_bytes") = UINT64_MAX, py::arg("peer_key") = "",
           py::arg("least_lent_bytes") = UINT64_MAX,
           "The peer is known, by a key of its own, and takes payloads of so many bytes: large frames may come, and "
           "heartbeats start. Answers to queries of at least that many bytes may be lent to it.")
      .def(
          "accept_region",
          [](Stream& self, uint64_t region, uint64_t number) { self.lending().accept(region, number); },
          py::arg("region"), py::arg("number"), "The peer has mapped a region of this process, by that number.")
      .def("forget_region", &Stream::forget_region, py::arg("region"), py::call_guard<GilReleased>(),
           "Nothing new is lent from it.")
      .def(
          "end_lending",
          [](Stream& self) {
            py::list out;
            for (rpc::Lending::Lent& lent : self.lending().close())
              out.append(py::make_tuple(lent.place.region, LentPayload{std::move(lent.owner)}));
            return out;
          },
          "The connection is gone: the region of what is lent, and that, which the peer may still read.")
      .def_property_readonly("num_lent", [](Stream& self) { return self.lending().count(); })
      .def("lent_here", &Stream::lent_here, py::arg("region"),
           "Answers of queries that lie in the peer's region of that number, and were not read yet.")
      .def("expect_answer", &Stream::expect_answer, py::arg("request_id"),
           "The calling thread is about to wait for an answer.")
      .def("await_answer", &await_answer, py::arg("request_id"), py::arg("timeout_s"),
           "Header fields, head and payload of the expected answer; None where it was released, or the time is over.")
      .def("forget_answer", &Stream::forget_answer, py::arg("request_id"), "It is expected no more.")
      .def("release_answer", &Stream::release_answer, py::arg("request_id"),
           "Lets go the thread that waits for it. False: it has its answer.")
      .def("close", &Stream::close, "Drops what is queued; the event 'closed' follows. Idempotent.")
      .def_property_readonly("is_tcp", &Stream::is_tcp)
      .def_property_readonly("out_bytes", &Stream::out_bytes, "Bytes that wait to be sent.")
      .def("tell_when_below", &Stream::tell_when_below, py::arg("nbytes"),
           "The event 'room' tells, once, when no more than so many wait to be sent.")
      .def_property_readonly("is_closed", &Stream::is_closed, "Nothing more is received or sent.")
      .def_property_readonly(
          "sent", [](const Stream& self) { return std::pair(self.sent().on_socket(), self.sent().in_memory()); },
          "Bytes of frames over the socket, and of payloads in shared memory, by what they are for.")
      .def_property_readonly(
          "received",
          [](const Stream& self) { return std::pair(self.received().on_socket(), self.received().in_memory()); })
      .def_property_readonly("queries_sent", &Stream::queries_sent)
      .def_property_readonly("queries_served", &Stream::queries_served);
  py::class_<PendingAnswer, std::shared_ptr<PendingAnswer>>(m, "PendingAnswer", "The answer to a query.")
      .def_property_readonly("is_over", &PendingAnswer::is_over, "Whether it came, or will not.")
      .def_property_readonly("is_called_off", &PendingAnswer::is_called_off)
      .def("call_off", &PendingAnswer::call_off, py::call_guard<GilReleased>(),
           "Nobody wants it any more. False: it is over.")
      .def(
          "wait",
          [](PendingAnswer& self, std::optional<double> timeout_s) {
            const auto deadline = deadline_of(timeout_s.value_or(kForeverS));
            const GilReleased no_gil;  // that is what waiting is for
            return self.wait(deadline, check_signals);
          },
          py::arg("timeout_s"), "Waits until it is over. False: the time is.")
      .def("borrowed", &PendingAnswer::borrowed, "What is lent was found, and goes back another way.")
      .def("take", &take_answer,
           "How it ended, once: ('answered', head, payload or None), ('lent', head, (place, bytes)), ('failed', its "
           "failure, None), ('lost', why, "
           "None), "
           "('garbled', how, None), ('late', '', None); None where it is not over, was called off, or taken.");
  py::class_<rpc::Answerer, std::shared_ptr<rpc::Answerer>>(m, "Answerer", "Answers queries, without the interpreter.");

  py::class_<Engine>(m, "RpcEngine", "Sockets driven by one thread that needs no interpreter.")
      .def(py::init(&make_engine), py::arg("heartbeat_interval_s"), py::arg("heartbeat_timeout_s"),
           py::arg("max_payload_bytes"), py::arg("num_threads") = 2, py::arg("max_waiting") = 256,
           py::arg("own_name") = "this side")
      .def(
          "serve",
          [](Engine& self, const std::string& service, std::shared_ptr<rpc::Answerer> answerer) {
            self.queries().server->serve(service, std::move(answerer));
          },
          py::arg("service"), py::arg("answerer"), py::call_guard<GilReleased>(),
          "Has `answerer` answer queries to a service, in threads of the engine's; None: nobody.")
      .def("ask", &ask, py::arg("stream"), py::arg("service"), py::arg("head"), py::arg("timeout_s"),
           "Sends a query without payload; its answer, which ends where the connection does, or after that time.")
      .def("open", &Engine::open, py::arg("fd"), "Drives a connected, non-blocking socket, owned from here on.")
      .def("fileno", &Engine::fd, "Can be read when poll() has something to tell.")
      .def("poll", &poll,
           "What happened, as tuples of a stream's id and: 'frame', (header fields, head, payload) | 'sent', token | "
           "'offer', "
           "region | 'malformed' | 'mismatch' | 'closed', why.")
      // The thread never needs the GIL, but it may be in a system call.
      .def("close", &Engine::close, py::call_guard<GilReleased>(),
           "Closes all streams and ends the thread; poll() tells the last events. Idempotent.");
}

}  // namespace gld
