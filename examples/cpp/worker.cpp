// Works on demo jobs: replace the handler by your own. The machinery is in ringq_worker.h.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ringq_worker.h"

namespace {

using nlohmann::json;

json parse(const std::string& payload) {
  try {
    auto task = json::parse(payload);
    if (task.is_object()) return task;
  } catch (const json::parse_error& error) {
    throw ringq::DeadLetter(std::string("the payload is not JSON: ") + error.what());
  }
  throw ringq::DeadLetter("the payload is not a JSON object");
}

// A database would refuse a former delivery that is still at work: UPDATE … WHERE fence < $1.
void write_ledger(const json& entry) {
  const auto path = ringq::setting("LEDGER", "");
  if (path.empty()) return;
  const auto line = entry.dump() + "\n";
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const bool written = file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (!written) throw std::system_error(error, std::generic_category(), path);
}

// Runs in one of several threads. A job can come twice. Calls that it makes pass `job.traceparent()` on.
std::optional<std::string> handle(ringq::Job& job) {
  const auto& delivery = job.delivery();
  const auto task = parse(job.payload().value_or("{}"));
  if (task.value("dead", false)) throw ringq::DeadLetter("the payload asks for a dead letter");
  const int steps = task.value("steps", 0);
  const int from = json::parse(job.checkpoint().value_or("{}")).value("step", 0);
  for (int step = from; step < steps; ++step) {
    job.wait(ringq::Seconds(task.value("step_ms", 0.0) / 1000));  // The work.
    if (delivery.attempt() <= task.value("fail_until", 0)) throw std::runtime_error("this attempt fails as the payload asks");
    if (step + 1 < steps) job.save(json{{"step", step + 1}}.dump());
  }
  write_ledger({{"id", delivery.id()}, {"topic", delivery.topic()}, {"fence", delivery.fence()},
                {"attempt", delivery.attempt()}, {"steps", steps}, {"from", from}, {"by", "cpp"}});
  return json{{"steps", steps}, {"by", "cpp"}}.dump();
}

}  // namespace

int main() try {
  // Blocked in all threads, so before the first one starts: only `sigwait` takes these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  ringq::Worker worker(handle);
  std::thread([&] {
    for (int signal = 0;;) {
      sigwait(&signals, &signal);
      worker.stop();
    }
  }).detach();
  worker.run();
  // Without destructors: each job is settled, and a handler that ignores its cancellation must not hold up the end.
  std::quick_exit(0);
} catch (const std::exception& error) {
  ringq::log(error.what());
  std::quick_exit(1);
}
