package dev.ringq.example;

import com.google.protobuf.util.Durations;
import dev.ringq.v1.Delivery;
import dev.ringq.v1.Payload;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.function.BiFunction;

/** One delivery. The thread of its handler is interrupted when the job is another worker's. */
final class Job {
  final Delivery delivery;
  final long lease;
  private final BiFunction<Job, Payload, Future<?>> saver;
  /** Runs the handler. */
  FutureTask<Payload> task;
  boolean settling;
  int extensions;
  Future<?> renewal;
  Future<?> expiry;

  Job(Delivery delivery, BiFunction<Job, Payload, Future<?>> saver) {
    this.delivery = delivery;
    this.lease = delivery.hasLeaseDuration() ? Durations.toNanos(delivery.getLeaseDuration()) : 30_000_000_000L;
    this.saver = saver;
  }

  String receipt() {
    return delivery.getReceipt();
  }

  /** The producer's trace context: send it as header {@code traceparent} with the calls that the handler makes. */
  String traceparent() {
    return delivery.getHeadersOrDefault("traceparent", "");
  }

  /** Saves a checkpoint, which the next delivery of the job has. If that fails, the work goes on. */
  void save(Payload checkpoint) throws InterruptedException {
    try {
      saver.apply(this, checkpoint).get();
    } catch (ExecutionException error) {
      Ringq.log("%s: a checkpoint is not saved: %s", this, Ringq.text(error.getCause()));
    }
  }

  @Override
  public String toString() {
    String[] trace = traceparent().split("-");
    return "job %s/%s trace %s".formatted(delivery.getTopic(), delivery.getId(), trace.length > 1 ? trace[1] : "none");
  }
}
