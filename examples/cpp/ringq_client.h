// A channel to ringq, its calls and their errors: for the worker and the producer.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ringq/v1/queue_service.grpc.pb.h"

namespace ringq {

using Seconds = std::chrono::duration<double>;
// Of the monotonic clock: steps of the wall clock must not move leases.
using Time = std::chrono::time_point<std::chrono::steady_clock, Seconds>;

inline Time now() { return std::chrono::steady_clock::now(); }

// The variable RINGQ_<name> of the environment.
std::string setting(const char* name, const std::string& fallback);
Seconds seconds_setting(const char* name, double fallback);
int int_setting(const char* name, int fallback);
std::vector<std::string> topics();

// A random number of `digits` hexadecimal digits.
std::string random_hex(int digits);

// A random pause before repeat 1, 2, …: up to 0.25 s, doubling to `longest`; at least a tenth of that.
Seconds pause(int attempt, double longest = 5.0);

// Writes one line to stderr. Lines of threads do not mix.
void log(const std::string& line);

Seconds seconds(const google::protobuf::Duration& duration);
google::protobuf::Duration duration(Seconds seconds);

// A failed call. `reason` is empty if the error came from a library or a proxy, not from ringq.
struct Error {
  grpc::StatusCode code;
  std::string message;
  std::string reason;
  std::optional<Seconds> delay;  // of RetryInfo

  explicit Error(const grpc::Status& status);
  bool repeatable() const;
  // Neither ringq nor an outage: one item of the call may be the cause, as behind a proxy that limits bodies.
  bool unexplained() const;
  // One item of the call may be the cause; nothing was applied.
  bool of_an_item() const;
  std::string text() const;
};

class Client {
 public:
  using Stub = v1::QueueService::Stub;

  Client();
  Stub& stub() const { return *stub_; }
  Seconds timeout() const { return timeout_; }
  // The context of a call: the token, and a deadline unless it is a stream.
  void prepare(grpc::ClientContext& context, std::optional<Seconds> timeout) const;

 private:
  Seconds timeout_ = seconds_setting("CALL_TIMEOUT", 10);
  std::string token_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace ringq
