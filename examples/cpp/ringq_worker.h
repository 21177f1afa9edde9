// The worker's machinery: see Worker.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <thread>

#include "ringq_client.h"

namespace ringq {

// The job can never succeed: it becomes a dead letter. Any other exception is a failure that is retried.
struct DeadLetter : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The job is no longer this worker's, or the worker stops. Let it pass: no std::exception, so that handlers do not catch it.
struct Cancelled {};

// What a handler sees of a job.
class Job {
 public:
  Job(v1::Delivery delivery, const Client& client) : delivery_(std::move(delivery)), client_(client) {}

  const v1::Delivery& delivery() const { return delivery_; }
  std::optional<std::string> payload() const;
  std::optional<std::string> checkpoint() const;
  // The producer's trace context: send it on with each request that the handler makes.
  std::string traceparent() const;

  // For libraries that take one. Without: call `check` between steps of work.
  std::stop_token stop_token() const { return stop_.get_token(); }
  void check() const;
  // Waits, but not longer than the job is this worker's.
  void wait(Seconds seconds) const;
  // Stores up to 64 KiB for the next delivery, should this one not come to its end.
  void save(const std::string& checkpoint);

  void cancel() { stop_.request_stop(); }

 private:
  const v1::Delivery delivery_;
  const Client& client_;
  std::stop_source stop_;
};

// Returns the result of the job, if there is one.
using Handler = std::function<std::optional<std::string>(Job&)>;

// A list of actions that threads hand to the thread of Worker::run.
class Events {
 public:
  void post(std::function<void()> action);
  std::vector<std::function<void()>> take(Time until);

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<std::function<void()>> actions_;
};

// One thread, that of `run`, owns all state. The stream and the calls use gRPC's callbacks and the handlers threads of their
// own; all of them post what they have to `events_`. So neither a slow call nor a slow handler delays the others.
class Worker {
 public:
  explicit Worker(Handler handler);
  // Returns after `stop`, when each job is settled, or two call timeouts after the grace.
  void run();
  // From any thread.
  void stop();

 private:
  struct Entry;
  struct Result;
  class Stream;
  using EntryPtr = std::shared_ptr<Entry>;
  using Batch = std::vector<EntryPtr>;
  using Failures = google::protobuf::RepeatedPtrField<v1::SettleFailure>;
  using Async = v1::QueueService::StubInterface::async_interface;
  template <class Request, class Response>
  using AsyncMethod = void (Async::*)(grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);
  using Settled = std::function<void(const grpc::Status&, const Failures&)>;

  void step(Time now);
  Time next_time() const;
  void connect();
  void received(const v1::StreamResponse& message);
  void broken(const grpc::Status& status);
  void end_stream();
  void extend_all();
  void extend_due(Time now);
  void extend(const Batch& batch, Time now);
  void start_handlers();
  void handle(std::stop_token stop);
  void finished(const EntryPtr& entry, v1::NackAction action, const std::string& error,
                const std::optional<std::string>& result);
  void nack(const EntryPtr& entry, v1::NackAction action, const std::string& error, const char* outcome);
  void settle(const EntryPtr& entry, const char* outcome);
  void settle_due(Time now);
  void settle_in_batches(const Batch& group, std::size_t most);
  void send_settles(const Batch& batch);
  void each_result(const Batch& batch, const grpc::Status& status, const Failures& failures, Seconds wait,
                   const std::function<void(const EntryPtr&, const Result&)>& use);
  void lose(const EntryPtr& entry, const std::string& reason);
  void finish(const EntryPtr& entry, const char* outcome);
  void release(const std::function<bool(const Entry&)>& which);
  template <class Request, class Response>
  void call(AsyncMethod<Request, Response> method, Request request, Seconds timeout, Settled done);

  Handler handler_;
  Client client_;
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
  std::map<std::string, EntryPtr> entries_;  // by receipt
  std::deque<EntryPtr> waiting_;             // in the order of arrival; also some that wait no more
  std::deque<std::string> recent_;           // Receipts that have left `entries_`: a message may come twice.
  std::map<std::string, int> counts_;
  std::shared_ptr<Stream> stream_;
  std::string stream_id_;
  bool informed_ = false, stopping_ = false;
  int failures_ = 0, extend_failures_ = 0;
  std::size_t running_ = 0;  // also cancelled ones that have not noticed it yet
  Seconds heartbeat_{20}, orphan_grace_{5};
  Time connect_at_ = now(), silent_at_ = Time::max(), started_{};
  Time settle_from_{}, read_end_ = Time::max(), grace_end_ = Time::max(), end_ = Time::max();  // Of a stopped worker.
  // The handlers' threads take from `ready_`. The last members: they end first.
  std::mutex ready_mutex_;
  std::condition_variable_any ready_filled_;
  std::deque<EntryPtr> ready_;
  std::vector<std::jthread> threads_;
};

}  // namespace ringq
