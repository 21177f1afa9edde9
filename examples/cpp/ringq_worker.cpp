#include "ringq_worker.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

namespace ringq {
namespace {

constexpr std::size_t kMaxItems = 1000, kMaxBytes = 3 << 20;  // Of a call; the server takes 4 MiB.
// A stopped worker reads on: a job that never arrives would wait for the orphan grace, as after a crash.
constexpr auto kArrivalTime = std::chrono::milliseconds(200);
constexpr std::size_t kRecent = 1000;

std::optional<std::string> bytes(const v1::Payload& payload) {
  if (payload.kind_case() == v1::Payload::kText) return payload.text();
  if (payload.kind_case() == v1::Payload::kData) return payload.data();
  return std::nullopt;
}

// With replacement characters for bad bytes: protobuf sends them, and the server refuses the whole call.
std::string valid_utf8(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

std::string worker_id() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return setting("WORKER_ID", host + ("-" + std::to_string(getpid())));
}

}  // namespace

std::optional<std::string> Job::payload() const { return bytes(delivery_.payload()); }

std::optional<std::string> Job::checkpoint() const { return bytes(delivery_.checkpoint()); }

std::string Job::traceparent() const {
  const auto found = delivery_.headers().find("traceparent");
  return found == delivery_.headers().end() ? "" : found->second;
}

void Job::check() const {
  if (stop_.stop_requested()) throw Cancelled();
}

void Job::wait(Seconds seconds) const {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any cancelled;
  cancelled.wait_for(lock, stop_.get_token(), seconds, [] { return false; });
  check();
}

void Job::save(const std::string& checkpoint) {
  check();
  v1::ExtendRequest request;
  auto* item = request.add_items();
  item->set_receipt(delivery_.receipt());
  item->mutable_checkpoint()->set_text(checkpoint);
  v1::ExtendResponse response;
  grpc::ClientContext context;
  client_.prepare(context, client_.timeout());
  const auto status = client_.stub().Extend(&context, request, &response);
  if (status.ok() && response.failures().empty()) return;
  const auto error = status.ok() ? response.failures(0).error() : v1::SETTLE_ERROR_UNAVAILABLE;
  const auto reason = status.ok() ? v1::SettleError_Name(error) : Error(status).text();
  log("job " + delivery_.id() + ": checkpoint not saved: " + reason);
  if (error == v1::SETTLE_ERROR_STALE || error == v1::SETTLE_ERROR_NOT_FOUND) cancel();
  check();
}

void Events::post(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  actions_.push_back(std::move(action));
  filled_.notify_one();
}

std::vector<std::function<void()>> Events::take(Time until) {
  std::unique_lock lock(mutex_);
  filled_.wait_until(lock, std::min(until, now() + Seconds(60)), [this] { return !actions_.empty(); });
  return std::exchange(actions_, {});
}

// A job in hand.
struct Worker::Entry {
  enum class State { kWaiting, kRunning, kSettling, kGone };

  std::shared_ptr<Job> job;
  Seconds length;
  State state = State::kWaiting;
  Time ends{}, extend_at = Time::max();  // max: an Extend is on its way.
  // One of the two items is used: with an empty receipt in `nack` it is `ack`.
  v1::AckItem ack{};
  v1::NackItem nack{};
  const char* outcome = "";
  Time settle_at = Time::max();  // max: there is no settle, or it is on its way.
  int tries = 0;
  std::size_t most = kMaxItems;  // Number of items in the call of its settle.
  Time since = Time::max();      // Begin of unexplained failures of its own call, in a row; max: there are none.

  const std::string& receipt() const { return job->delivery().receipt(); }
  bool is_ack() const { return nack.receipt().empty(); }
  // Keeps an Extend that was asked for while one was on its way.
  void renew(Time from) {
    ends = from + length;
    if (extend_at == Time::max()) extend_at = from + length / 2;
  }
};

// What an item was answered. `again_at` is set if a repeat is right.
struct Worker::Result {
  bool ok;
  v1::SettleError error;
  std::string text;
  std::optional<Time> again_at;
};

// Posts the messages of one stream. Owns itself until gRPC is done with it.
class Worker::Stream : public grpc::ClientReadReactor<v1::StreamResponse>, public std::enable_shared_from_this<Stream> {
 public:
  using Message = std::function<void(const v1::StreamResponse&)>;
  using End = std::function<void(const grpc::Status&)>;

  void start(const Client& client, v1::StreamRequest request, std::shared_ptr<Events> events, Message message, End end) {
    self_ = shared_from_this();
    request_ = std::move(request), events_ = std::move(events), use_ = std::move(message), end_ = std::move(end);
    client.prepare(context_, std::nullopt);
    client.stub().async()->Stream(&context_, &request_, this);
    StartRead(&message_);
    StartCall();
  }

  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    events_->post([use = use_, message = std::move(message_)] { use(message); });
    message_.Clear();
    StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    events_->post([end = end_, status] { end(status); });
    self_.reset();
  }

 private:
  std::shared_ptr<Stream> self_;
  grpc::ClientContext context_;
  v1::StreamRequest request_;
  v1::StreamResponse message_;
  std::shared_ptr<Events> events_;
  Message use_;
  End end_;
};

Worker::Worker(Handler handler) : handler_(std::move(handler)) {
  for (int i = 0; i < int_setting("CONCURRENCY", 4); ++i) threads_.emplace_back([this](std::stop_token stop) { handle(stop); });
}

void Worker::run() {
  while (!stopping_ || read_end_ != Time::max() || (!entries_.empty() && now() < end_)) {
    step(now());
    for (const auto& action : events_->take(next_time())) action();
  }
  if (stream_) stream_->cancel();
  counts_["lost"] += static_cast<int>(entries_.size());  // Not settled in time.
  std::string line = "stopped:";
  for (const std::string name : {"acked", "nacked", "released", "lost"}) {
    line += " " + name + "=" + std::to_string(counts_[name]);
  }
  log(line);
}

// Running jobs go on, the others go back, also those that are on their way here.
void Worker::stop() {
  events_->post([this] {
    if (std::exchange(stopping_, true)) return;
    read_end_ = settle_from_ = now() + kArrivalTime;  // Each settle before would bring another job.
    grace_end_ = now() + seconds_setting("GRACE", 25);
    end_ = grace_end_ + 2 * client_.timeout();
  });
}

void Worker::end_stream() {
  if (stream_) stream_->cancel();
  stream_.reset();
  read_end_ = silent_at_ = Time::max();
  release([](const Entry& entry) { return entry.state == Entry::State::kWaiting; });
  extend_all();  // Or the server releases them, too, when the orphan grace is over.
}

void Worker::step(Time now) {
  if (!stream_ && !stopping_ && now >= connect_at_) connect();
  if (now >= silent_at_) broken({grpc::UNAVAILABLE, "no message for three heartbeats"});
  const auto all = entries_;  // `lose` removes entries.
  for (const auto& [receipt, entry] : all)
    if (now >= entry->ends) lose(entry, "its lease is over");
  if (now >= read_end_) end_stream();
  if (now >= grace_end_) {
    grace_end_ = Time::max();
    release([](const Entry&) { return true; });
  }
  start_handlers();
  extend_due(now);
  settle_due(now);
}

Time Worker::next_time() const {
  Time next = std::min({silent_at_, read_end_, grace_end_, end_});
  if (!stream_ && !stopping_) next = std::min(next, connect_at_);
  for (const auto& [receipt, entry] : entries_) next = std::min({next, entry->ends, entry->extend_at, entry->settle_at});
  return next;
}

void Worker::connect() {
  v1::StreamRequest request;
  for (const auto& topic : topics()) request.add_topics(topic);
  request.set_max_in_flight(int_setting("CREDIT", 16));
  request.set_worker_id(worker_id());
  request.set_continues_stream_id(stream_id_);
  *request.mutable_lease_duration() = duration(seconds_setting("LEASE", 30));
  informed_ = false;
  started_ = now();
  silent_at_ = started_ + client_.timeout();  // The first message comes at once.
  stream_ = std::make_shared<Stream>();
  // Compared, not used: a former stream must not act for the present one.
  const Stream* id = stream_.get();
  stream_->start(
      client_, std::move(request), events_,
      [this, id](const v1::StreamResponse& message) { if (stream_.get() == id) received(message); },
      [this, id](const grpc::Status& status) { if (stream_.get() == id) broken(status); });
}

void Worker::received(const v1::StreamResponse& message) {
  if (message.has_info()) {
    informed_ = true;
    failures_ = 0;
    stream_id_ = message.info().stream_id();
    if (message.info().has_heartbeat_interval()) heartbeat_ = seconds(message.info().heartbeat_interval());
    if (message.info().has_orphan_grace()) orphan_grace_ = seconds(message.info().orphan_grace());
    extend_all();  // Shows what was revoked between two streams.
  }
  silent_at_ = now() + 3 * heartbeat_;
  for (const auto& revocation : message.revocations())
    if (const auto found = entries_.find(revocation.receipt()); found != entries_.end())
      lose(EntryPtr(found->second), "revoked, " + v1::RevocationReason_Name(revocation.reason()));
  for (const auto& delivery : message.deliveries()) {
    const auto& receipt = delivery.receipt();
    if (entries_.count(receipt) || std::find(recent_.begin(), recent_.end(), receipt) != recent_.end()) continue;
    const auto lease = delivery.has_lease_duration() ? seconds(delivery.lease_duration()) : seconds_setting("LEASE", 30);
    auto entry = std::make_shared<Entry>(Entry{std::make_shared<Job>(delivery, client_), lease});
    entry->renew(now());
    waiting_.push_back(entry);
    entries_.emplace(receipt, std::move(entry));
  }
}

// The stream has ended: with OK, by an error or by silence.
void Worker::broken(const grpc::Status& status) {
  std::exchange(stream_, nullptr)->cancel();
  silent_at_ = Time::max();
  ++failures_;
  if (status.ok() && informed_) {
    // At once, but no loop of streams that end at once.
    connect_at_ = now() - started_ < Seconds(1) ? now() + pause(failures_) : now();
    return;
  }
  if (informed_) extend_all();  // Or the server gives the jobs to others after orphan_grace.
  const Error error(status);
  // Also without the right to it, which may come back: then with a long pause.
  const auto wait = pause(error.repeatable() ? failures_ : 10) + std::min(error.delay.value_or(Seconds(0)), Seconds(30));
  log("stream: " + error.text() + "; again in " + std::to_string(wait.count()) + " s");
  connect_at_ = now() + wait;
}

void Worker::extend_all() {
  for (const auto& [receipt, entry] : entries_) entry->extend_at = now();
}

void Worker::extend_due(Time now) {
  Batch batch;
  for (const auto& [receipt, entry] : entries_) {
    if (now >= entry->extend_at) batch.push_back(entry);
    if (batch.size() == kMaxItems) extend(std::exchange(batch, {}), now);
  }
  if (!batch.empty()) extend(batch, now);
}

void Worker::extend(const Batch& batch, Time now) {
  v1::ExtendRequest request;
  // Early enough for a second attempt within the lease, or within the grace should the stream be broken.
  Seconds timeout = std::min<Seconds>(client_.timeout(), orphan_grace_ / 2);
  for (const auto& entry : batch) {
    entry->extend_at = Time::max();
    timeout = std::min<Seconds>(timeout, entry->length / 4);
    request.add_items()->set_receipt(entry->receipt());
  }
  call(&Async::Extend, std::move(request), timeout, [this, batch, now](const grpc::Status& status, const Failures& failures) {
    if (Error(status).of_an_item() && batch.size() > 1) {
      // One bad item must not cost the others their leases: each one alone.
      for (const auto& entry : batch) if (entry->state != Entry::State::kGone) extend({entry}, ringq::now());
      return;
    }
    extend_failures_ = status.ok() ? 0 : extend_failures_ + 1;
    const auto wait = pause(extend_failures_ + 1, 0.5);
    each_result(batch, status, failures, wait, [this, &status, now](const EntryPtr& entry, const Result& result) {
      if (result.again_at) {
        entry->extend_at = *result.again_at;
      } else if (result.ok) {
        entry->renew(now);  // From when it was sent: never longer than at the server.
      } else if (!status.ok()) {
        entry->extend_at = ringq::now() + Seconds(5);  // No right to it, for example, which may come back.
      } else if (entry->state != Entry::State::kSettling) {
        lose(entry, result.text);  // Else the answer to its Ack shows what has become of it.
      }
    });
  });
}

// `done` runs in the thread of `run`.
template <class Request, class Response>
void Worker::call(AsyncMethod<Request, Response> method, Request request, Seconds timeout, Settled done) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  client_.prepare(call->context, timeout);
  auto post = [call, done = std::move(done), events = events_](const grpc::Status& status) {
    events->post([call, done, status] { done(status, call->response.failures()); });
  };
  (client_.stub().async()->*method)(&call->context, &call->request, &call->response, std::move(post));
}

// Calls `use` for each job that is still in hand. One time for all repeats, so that they share the next call, too.
void Worker::each_result(const Batch& batch, const grpc::Status& status, const Failures& failures, Seconds wait,
                         const std::function<void(const EntryPtr&, const Result&)>& use) {
  std::map<std::string, v1::SettleError> errors;
  for (const auto& failure : failures) errors.emplace(failure.receipt(), failure.error());
  const Error error(status);
  if (!status.ok()) log("call with " + std::to_string(batch.size()) + " jobs: " + error.text());
  const auto again_at = now() + error.delay.value_or(Seconds(0)) + wait;
  for (const auto& entry : batch) {
    if (entry->state == Entry::State::kGone) continue;
    const auto failed = errors.find(entry->receipt());
    const auto item = failed == errors.end() ? v1::SETTLE_ERROR_UNSPECIFIED : failed->second;
    const bool repeat = status.ok() ? item == v1::SETTLE_ERROR_UNAVAILABLE : error.repeatable();
    use(entry, {status.ok() && failed == errors.end(), item, status.ok() ? v1::SettleError_Name(item) : error.text(),
                repeat ? std::optional(again_at) : std::nullopt});
  }
}

void Worker::start_handlers() {
  while (!stopping_ && running_ < threads_.size() && !waiting_.empty()) {
    const auto entry = waiting_.front();
    waiting_.pop_front();
    if (entry->state != Entry::State::kWaiting) continue;
    entry->state = Entry::State::kRunning;
    ++running_;
    const std::lock_guard lock(ready_mutex_);
    ready_.push_back(entry);
    ready_filled_.notify_one();
  }
}

// A thread that runs handlers.
void Worker::handle(std::stop_token stop) {
  for (;;) {
    std::unique_lock lock(ready_mutex_);
    if (!ready_filled_.wait(lock, stop, [this] { return !ready_.empty(); })) return;
    const auto entry = ready_.front();
    ready_.pop_front();
    lock.unlock();
    const auto job = entry->job;
    auto action = v1::NACK_ACTION_UNSPECIFIED;
    std::string error;
    std::optional<std::string> result;
    try {
      result = handler_(*job);
    } catch (const Cancelled&) {
      error = "cancelled";
    } catch (const DeadLetter& dead) {
      action = v1::NACK_ACTION_DEAD_LETTER, error = dead.what();
    } catch (const std::exception& failure) {
      action = v1::NACK_ACTION_RETRY, error = failure.what();
    } catch (...) {
      action = v1::NACK_ACTION_RETRY, error = "an exception of an unknown type";
    }
    if (!error.empty()) log("job " + job->delivery().id() + ": " + error + "; trace " + job->traceparent());
    events_->post([this, entry, action, error, result] { finished(entry, action, error, result); });
  }
}

void Worker::finished(const EntryPtr& entry, v1::NackAction action, const std::string& error,
                      const std::optional<std::string>& result) {
  --running_;
  if (entry->state != Entry::State::kRunning) return;  // Lost or released meanwhile.
  if (action != v1::NACK_ACTION_UNSPECIFIED) return nack(entry, action, error, "nacked");
  if (!error.empty()) return lose(entry, error);
  entry->ack.set_receipt(entry->receipt());
  if (result && valid_utf8(*result) == *result) entry->ack.mutable_result()->set_text(*result);
  else if (result) entry->ack.mutable_result()->set_data(*result);
  settle(entry, "acked");
}

void Worker::nack(const EntryPtr& entry, v1::NackAction action, const std::string& error, const char* outcome) {
  entry->nack.set_receipt(entry->receipt());
  entry->nack.set_action(action);
  entry->nack.set_error(valid_utf8(error.substr(0, 1000)));
  settle(entry, outcome);
}

// In a few milliseconds, together with others; at once if there is no other job.
void Worker::settle(const EntryPtr& entry, const char* outcome) {
  entry->state = Entry::State::kSettling;
  entry->outcome = outcome;
  entry->settle_at = std::max<Time>(now() + Seconds(entries_.size() > 1 ? 0.003 : 0), settle_from_);
}

void Worker::settle_due(Time now) {
  // Repeats travel apart: the shard that they wait for must not delay what is new.
  std::map<std::tuple<bool, bool, std::size_t>, Batch> groups;
  for (const auto& [receipt, entry] : entries_) {
    if (entry->settle_at != Time::max()) groups[{entry->is_ack(), entry->tries == 0, entry->most}].push_back(entry);
  }
  for (auto& [key, group] : groups) {
    const auto [ack, fresh, most] = key;
    const auto waits = [now](const EntryPtr& entry) { return now < entry->settle_at; };
    if (fresh && std::all_of(group.begin(), group.end(), waits)) continue;
    if (!fresh) std::erase_if(group, waits);
    if (!group.empty()) settle_in_batches(group, most);
  }
}

void Worker::settle_in_batches(const Batch& group, std::size_t most) {
  Batch batch;
  std::size_t bytes = 0;
  for (const auto& entry : group) {
    const auto size = entry->is_ack() ? entry->ack.ByteSizeLong() : entry->nack.ByteSizeLong();
    if (batch.size() == most || (!batch.empty() && bytes + size > kMaxBytes)) {
      send_settles(std::exchange(batch, {}));
      bytes = 0;
    }
    batch.push_back(entry);
    bytes += size;
  }
  send_settles(batch);
}

void Worker::send_settles(const Batch& batch) {
  v1::AckRequest acks;
  v1::NackRequest nacks;
  int tries = 0;
  for (const auto& entry : batch) {
    entry->settle_at = Time::max();
    tries = std::max(tries, ++entry->tries);
    if (entry->is_ack()) *acks.add_items() = entry->ack;
    else *nacks.add_items() = entry->nack;
  }
  Settled done = [this, batch, tries](const grpc::Status& status, const Failures& failures) {
    const Error error(status);
    for (const auto& entry : batch) {
      const bool unexplained = !status.ok() && error.unexplained();
      // In two halves: it may be too large for a proxy, or one item is the cause.
      if (unexplained) entry->most = (batch.size() + 1) / 2;
      entry->since = unexplained && batch.size() == 1 ? std::min(entry->since, now()) : Time::max();
    }
    if (!status.ok() && !error.repeatable() && batch.size() > 1) {
      // One bad item, such as a result that is too large, must not cost the others their Ack: each one alone.
      for (const auto& entry : batch) if (entry->state != Entry::State::kGone) send_settles({entry});
      return;
    }
    const auto& only = batch.front();
    const bool refused = error.of_an_item() && error.code == grpc::INVALID_ARGUMENT;
    const bool stuck = now() >= only->since && now() - only->since >= only->length;  // Its Extends have passed meanwhile.
    if ((refused || stuck) && only->is_ack() && only->ack.has_result() &&
        only->state != Entry::State::kGone) {
      log("job " + only->job->delivery().id() + ": acked without its result: " + error.text());
      only->ack.clear_result();  // Finished work must not run again for its result.
      send_settles({only});
      return;
    }
    each_result(batch, status, failures, pause(tries, 2.0), [this](const EntryPtr& entry, const Result& result) {
      // NOT_FOUND: an earlier attempt was applied, and the record is forgotten.
      if (result.ok || (result.error == v1::SETTLE_ERROR_NOT_FOUND && entry->tries > 1)) finish(entry, entry->outcome);
      else if (result.again_at) entry->settle_at = *result.again_at;
      else lose(entry, result.text);
    });
  };
  if (acks.items_size() > 0) call(&Async::Ack, std::move(acks), client_.timeout(), std::move(done));
  else call(&Async::Nack, std::move(nacks), client_.timeout(), std::move(done));
}

void Worker::lose(const EntryPtr& entry, const std::string& reason) {
  log("job " + entry->job->delivery().id() + ": lost: " + reason);
  entry->job->cancel();
  finish(entry, "lost");
}

void Worker::finish(const EntryPtr& entry, const char* outcome) {
  entry->state = Entry::State::kGone;
  ++counts_[outcome];
  recent_.push_back(entry->receipt());
  if (recent_.size() > kRecent) recent_.pop_front();
  entries_.erase(entry->receipt());
}

void Worker::release(const std::function<bool(const Entry&)>& which) {
  for (const auto& [receipt, entry] : entries_) {
    if (entry->state == Entry::State::kSettling || !which(*entry)) continue;
    entry->job->cancel();
    nack(entry, v1::NACK_ACTION_RELEASE, "the worker stops", "released");
  }
}

}  // namespace ringq
