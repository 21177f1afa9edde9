package dev.ringq.example;

import static com.google.rpc.Code.*;

import com.google.protobuf.Duration;
import com.google.protobuf.util.Durations;
import com.google.rpc.ErrorInfo;
import dev.ringq.v1.*;
import io.grpc.StatusRuntimeException;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.IntStream;

/** Enqueues COUNT jobs. Usage: run-producer COUNT */
final class Producer {
  private static final Set<Integer> REPEATABLE = Set.of(UNAVAILABLE_VALUE, RESOURCE_EXHAUSTED_VALUE, DEADLINE_EXCEEDED_VALUE);
  private static final Set<String> UNKNOWN = Set.of("OUTCOME_UNKNOWN", "DURABILITY_NOT_REACHED", "DEADLINE_EXCEEDED");
  private static final Set<JobState> NOT_RUN =
      Set.of(JobState.JOB_STATE_DEAD, JobState.JOB_STATE_EXPIRED, JobState.JOB_STATE_CANCELLED);
  /** By the contract, a repeat finds a job while its record lives: this long from its end. */
  private static final Duration RETENTION = Durations.fromHours(1);
  private static final long REPEATED_FOR = TimeUnit.MINUTES.toNanos(15);
  private static final int ENQUEUED = 0, UNCHANGED = 1, FAILED = 2;
  private static final String PREFIX = Ringq.setting("RINGQ_PREFIX", random(8));
  private static final int[] TOTALS = new int[3];
  private static QueueServiceGrpc.QueueServiceBlockingStub stub;

  private static String random(int digits) {
    return UUID.randomUUID().toString().replace("-", "").substring(0, digits);
  }

  private static JobSpec job(int index) {
    return JobSpec.newBuilder()
        .setTopic(Ringq.setting("RINGQ_TOPICS", "examples").split(",")[0])
        .setId(PREFIX.equals("-") ? "" : PREFIX + "-" + index)
        .setPayload(Payload.newBuilder().setText(Ringq.setting("RINGQ_PAYLOAD", "{\"steps\":2,\"step_ms\":10}")))
        .setRetention(RETENTION)
        // The trace of whatever asked for this job: here each begins one.
        .putHeaders("traceparent", "00-" + random(32) + "-" + random(16) + "-01")
        .build();
  }

  /** Makes the call until it is answered, or {@code end}. It has a request_id, so a repeat stores no job twice until then. */
  private static BatchEnqueueResponse call(BatchEnqueueRequest request, long end) throws InterruptedException {
    for (int attempt = 0; ; attempt++) {
      try {
        return stub.withDeadlineAfter(Ringq.duration("RINGQ_CALL_TIMEOUT", "10"), TimeUnit.NANOSECONDS).batchEnqueue(request);
      } catch (StatusRuntimeException error) {
        ErrorInfo info = Ringq.detail(error, ErrorInfo.getDefaultInstance());
        long least = Ringq.retryDelay(error);
        // Such a repeat came too late: the server cannot know whether the jobs ran.
        boolean tooLate = info.getReason().equals("OUTCOME_UNKNOWN") && !info.containsMetadata("id") && least == 0;
        if (!Ringq.isRepeatable(error) || tooLate) {
          throw error;
        }
        long delay = least + Ringq.pause(attempt, 100, 3_000);
        if (System.nanoTime() + delay - end > 0) {
          throw error.getStatus().augmentDescription("given up, may be stored").asRuntimeException();
        }
        Ringq.log("BatchEnqueue failed: %s; again in %d ms", Ringq.text(error), delay / 1_000_000);
        TimeUnit.NANOSECONDS.sleep(delay);
      }
    }
  }

  private static void enqueue(List<JobSpec> jobs, String requestId, int attempt, long end) throws InterruptedException {
    if (jobs.isEmpty()) {
      return;
    }
    TimeUnit.NANOSECONDS.sleep(attempt == 0 ? 0 : Ringq.pause(attempt, 100, 3_000));
    List<EnqueueResult> results;
    try {
      results = call(BatchEnqueueRequest.newBuilder().addAllJobs(jobs).setRequestId(requestId).build(), end).getResultsList();
    } catch (StatusRuntimeException error) {
      Ringq.log("%d jobs have failed: %s", jobs.size(), Ringq.text(error));
      TOTALS[FAILED] += jobs.size();
      return;
    }
    List<JobSpec> again = new ArrayList<>();
    for (int index = 0; index < results.size(); index++) {
      EnqueueResult result = results.get(index);
      ItemError error = result.getError();
      if (!result.hasError()) {
        if (NOT_RUN.contains(result.getState())) {
          Ringq.log("job %s exists and does not run: %s", result.getId(), result.getState());
        }
        TOTALS[result.getOutcome() == EnqueueOutcome.ENQUEUE_OUTCOME_UNCHANGED ? UNCHANGED : ENQUEUED]++;
        continue;
      }
      // The result names the id that makes a repeat safe. Without one, a repeat could store a second job.
      String id = result.getId().isEmpty() ? jobs.get(index).getId() : result.getId();
      boolean isRepeatable = REPEATABLE.contains(error.getCode());
      boolean isLate = isRepeatable && System.nanoTime() - end > 0;
      Ringq.log("job %s: %s: %s%s", id, error.getReason(), error.getMessage(), isLate ? ": given up, may be stored" : "");
      if (isRepeatable && !isLate && !(id.isEmpty() && UNKNOWN.contains(error.getReason()))) {
        again.add(jobs.get(index).toBuilder().setId(id).build());
      } else {
        TOTALS[FAILED]++;
      }
    }
    // The request_id makes ids of the places of jobs without one, and these places have changed.
    enqueue(again.stream().filter(job -> !job.getId().isEmpty()).toList(), requestId, attempt + 1, end);
    enqueue(again.stream().filter(job -> job.getId().isEmpty()).toList(), UUID.randomUUID().toString(), attempt + 1, end);
  }

  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[0]);
    int batch = Integer.parseInt(Ringq.setting("RINGQ_BATCH", "100"));
    stub = QueueServiceGrpc.newBlockingStub(Ringq.connect(Executors.newSingleThreadScheduledExecutor()));
    for (int first = 0; first < count; first += batch) {
      List<JobSpec> jobs = IntStream.range(first, Math.min(count, first + batch)).mapToObj(Producer::job).toList();
      enqueue(jobs, UUID.randomUUID().toString(), 0, System.nanoTime() + REPEATED_FOR);
    }
    System.out.printf("enqueued=%d unchanged=%d failed=%d%n", TOTALS[ENQUEUED], TOTALS[UNCHANGED], TOTALS[FAILED]);
    System.exit(TOTALS[FAILED] > 0 ? 1 : 0);
  }
}
