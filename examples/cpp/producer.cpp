// Enqueues COUNT jobs. Usage: producer COUNT

#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "ringq_client.h"

namespace {

using namespace ringq;

constexpr Seconds kRetention{3600}, kRepeats{900};
constexpr auto kGivenUp = "; given up after 15 minutes, may be stored";

struct Counts {
  int enqueued = 0, unchanged = 0, failed = 0;
};

// Repeats a whole call until it is answered. The ids of the jobs, or the request id, make that safe, but only while the first
// one's record lives: so the jobs have a retention, and repeats end long before it does.
std::optional<v1::BatchEnqueueResponse> enqueue(const Client& client, const v1::BatchEnqueueRequest& request, Time end) {
  for (int attempt = 1;; ++attempt) {
    grpc::ClientContext context;
    client.prepare(context, client.timeout());
    v1::BatchEnqueueResponse response;
    const auto status = client.stub().BatchEnqueue(&context, request, &response);
    if (status.ok()) return response;
    const Error error(status);
    // OUTCOME_UNKNOWN without RetryInfo answers a repeat that came too late: nothing was written now.
    const bool late = error.reason == "OUTCOME_UNKNOWN" && !error.delay;
    const auto wait = pause(attempt) + error.delay.value_or(Seconds(0));
    const bool unsettled = error.repeatable() && !late, repeat = unsettled && now() + wait < end;
    const auto next = repeat ? "; again in " + std::to_string(wait.count()) + " s" : unsettled ? kGivenUp : "";
    log("BatchEnqueue: " + error.text() + next);
    if (!repeat) return std::nullopt;
    std::this_thread::sleep_for(wait);
  }
}

bool repeatable(const v1::EnqueueResult& result, bool own_ids) {
  const auto code = result.error().code();
  const auto& reason = result.error().reason();
  const bool unknown = reason == "OUTCOME_UNKNOWN" || reason == "DURABILITY_NOT_REACHED";
  if (unknown && result.id().empty() && !own_ids) return false;  // A repeat could make a second job.
  return code == grpc::UNAVAILABLE || code == grpc::RESOURCE_EXHAUSTED || code == grpc::DEADLINE_EXCEEDED;
}

void send_batch(const Client& client, v1::BatchEnqueueRequest request, bool own_ids, Counts& counts) {
  const Time end = now() + kRepeats;
  for (int attempt = 1; request.jobs_size() > 0; ++attempt) {
    if (attempt > 1) std::this_thread::sleep_for(pause(attempt - 1));
    const auto response = enqueue(client, request, end);
    if (!response) {
      counts.failed += request.jobs_size();
      return;
    }
    v1::BatchEnqueueRequest again;
    again.set_request_id(request.request_id());
    for (int i = 0; i < response->results_size(); ++i) {
      const auto& result = response->results(i);
      if (!result.has_error()) {
        ++(result.outcome() == v1::ENQUEUE_OUTCOME_UNCHANGED ? counts.unchanged : counts.enqueued);
        if (result.state() == v1::JOB_STATE_DEAD || result.state() == v1::JOB_STATE_CANCELLED ||
            result.state() == v1::JOB_STATE_EXPIRED)
          log("job " + result.id() + " exists and will not run: " + v1::JobState_Name(result.state()));
        continue;
      }
      const bool unsettled = repeatable(result, own_ids), repeat = unsettled && now() < end;
      const auto next = repeat ? "; again" : unsettled ? kGivenUp : "";
      log("job " + result.id() + ": " + result.error().reason() + ": " + result.error().message() + next);
      if (!repeat) {
        ++counts.failed;
        continue;
      }
      // The id that makes the repeat safe. Without it the index would be another job's in the next call.
      auto* job = again.add_jobs();
      *job = request.jobs(i);
      if (job->id().empty()) job->set_id("r=" + request.request_id() + "=" + std::to_string(i));
      if (!result.id().empty()) job->set_id(result.id());
    }
    request = std::move(again);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int count = argc == 2 ? std::stoi(argv[1]) : throw std::runtime_error("usage: producer COUNT");
  const auto prefix = setting("PREFIX", random_hex(12));
  const auto topic = topics().at(0), payload = setting("PAYLOAD", R"({"steps":2,"step_ms":10})");
  // A call has at most 1,000 jobs and 4 MiB.
  const int most = std::clamp<int>((3 << 20) / (payload.size() + 500), 1, 1000);
  const int size = std::clamp(int_setting("BATCH", 100), 1, most);
  const Client client;
  Counts counts;
  for (int first = 0; first < count; first += size) {
    v1::BatchEnqueueRequest request;
    request.set_request_id(random_hex(32));
    for (int number = first; number < std::min(count, first + size); ++number) {
      auto* job = request.add_jobs();
      job->set_topic(topic);
      if (prefix != "-") job->set_id(prefix + "-" + std::to_string(number));
      job->mutable_payload()->set_text(payload);
      *job->mutable_retention() = duration(kRetention);
      // The context of this producer: with OpenTelemetry, that of the current span.
      (*job->mutable_headers())["traceparent"] = "00-" + random_hex(32) + "-" + random_hex(16) + "-01";
    }
    send_batch(client, std::move(request), prefix != "-", counts);
  }
  std::cout << "enqueued=" << counts.enqueued << " unchanged=" << counts.unchanged << " failed=" << counts.failed << std::endl;
  return counts.failed > 0 ? 1 : 0;
} catch (const std::exception& error) {
  ringq::log(error.what());
  return 1;
}
