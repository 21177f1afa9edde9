package dev.ringq.example;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import com.google.protobuf.MessageLite;
import com.google.protobuf.util.Durations;
import dev.ringq.v1.*;
import dev.ringq.v1.QueueServiceGrpc.QueueServiceStub;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;

/**
 * The worker around a handler: the eight duties of docs/workers.md. To be copied as it is.
 *
 * <p>One thread, the loop, has all state and runs all callbacks of gRPC. Only handlers run on other threads.
 */
final class RingqWorker {
  private static final long LONGEST_PAUSE_MILLIS = 3_000;
  private static final long ONE_SECOND = 1_000_000_000;
  /** The first message comes at once, but the connection may have to be made first. */
  private static final long FIRST_MESSAGE = 20 * ONE_SECOND;
  /** A stopped worker reads on: a job that never arrives would wait for the orphan_grace, as after a crash. */
  private static final long ARRIVAL_MILLIS = 200;
  private static final Set<Status.Code> HOPELESS =
      Set.of(Status.Code.UNAUTHENTICATED, Status.Code.PERMISSION_DENIED, Status.Code.INVALID_ARGUMENT);

  /** Does the work of one job and returns its result, or null. An exception is a failed attempt. */
  interface Handler {
    Payload handle(Job job) throws Exception;
  }

  /** Thrown by a handler for a job that can never succeed. */
  static final class DeadLetterException extends Exception {
    DeadLetterException(String message) {
      super(message);
    }
  }

  /** Logs what its tasks throw, which would vanish in their futures. */
  private static final class Loop extends ScheduledThreadPoolExecutor {
    Loop() {
      super(1);
      setRemoveOnCancelPolicy(true); // Each job cancels timers that are due much later.
    }

    @Override
    protected void afterExecute(Runnable task, Throwable thrown) {
      if (task instanceof Future<?> future && future.isDone() && !future.isCancelled()) {
        try {
          future.get();
        } catch (ExecutionException | InterruptedException error) {
          Ringq.log("a task of the loop has failed: %s", error);
        }
      }
    }
  }

  private enum Outcome { ACKED, NACKED, RELEASED, LOST }

  private final Handler handler;
  private final ScheduledExecutorService loop = new Loop();
  private final ExecutorService threads;
  private final int concurrency = Integer.parseInt(Ringq.setting("RINGQ_CONCURRENCY", "4"));
  private final long timeout = Ringq.duration("RINGQ_CALL_TIMEOUT", "10");
  private final QueueServiceStub stub;
  private final Batcher<AckItem> acks;
  private final Batcher<NackItem> nacks;
  private final Batcher<ExtendItem> extensions;
  /** The jobs whose leases this worker has, by receipt. Each one waits, runs or is being settled. */
  private final Map<String, Job> held = new HashMap<>();
  private final Set<Job> waiting = new LinkedHashSet<>();
  private final Set<Job> running = new LinkedHashSet<>();
  private final int[] counts = new int[Outcome.values().length];
  private final StreamRequest.Builder request;
  private int attempt;
  private Stream stream;
  private boolean stopping;
  /** True while a stopped worker reads on: each settle would bring another job. */
  private boolean isArriving;
  private final List<Runnable> heldBack = new ArrayList<>();
  private long orphanGrace = 5 * ONE_SECOND;
  /** The longest an Extend may take: less without a stream. */
  private long extendTimeout = Long.MAX_VALUE;
  private CompletableFuture<Void> settled = new CompletableFuture<>();

  RingqWorker(Handler handler) throws IOException {
    this.handler = handler;
    threads = Executors.newFixedThreadPool(concurrency);
    stub = QueueServiceGrpc.newStub(Ringq.connect(loop));
    // Then no other settle comes that could share a call. A new job can come before the answer to the last Ack.
    BooleanSupplier isAlone = () -> held.values().stream().allMatch(job -> job.settling);
    acks = new Batcher<>("Ack", loop, isAlone, (items, timeout, reply) -> stub.withDeadlineAfter(timeout, NANOSECONDS)
        .ack(AckRequest.newBuilder().addAllItems(items).build(), reply.of(AckResponse::getFailuresList)));
    nacks = new Batcher<>("Nack", loop, isAlone, (items, timeout, reply) -> stub.withDeadlineAfter(timeout, NANOSECONDS)
        .nack(NackRequest.newBuilder().addAllItems(items).build(), reply.of(NackResponse::getFailuresList)));
    extensions = new Batcher<>("Extend", loop, () -> held.size() < 2, (items, timeout, reply) -> stub.withDeadlineAfter(timeout, NANOSECONDS)
        .extend(ExtendRequest.newBuilder().addAllItems(items).build(), reply.of(ExtendResponse::getFailuresList)));
    request = StreamRequest.newBuilder()
        .addAllTopics(Arrays.asList(Ringq.setting("RINGQ_TOPICS", "examples").split(",")))
        .setWorkerId(Ringq.setting("RINGQ_WORKER_ID", hostName() + "-" + ProcessHandle.current().pid()))
        .setMaxInFlight(Integer.parseInt(Ringq.setting("RINGQ_CREDIT", "16")))
        .setLeaseDuration(Durations.fromNanos(Ringq.duration("RINGQ_LEASE", "30")));
  }

  private static String hostName() {
    try {
      return InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException unknown) {
      return "java"; // In a container the name may have no address.
    }
  }

  void start() {
    loop.execute(this::openStream);
  }

  /** Finishes the running jobs and releases the others, also those that are on their way here. */
  void stop() throws InterruptedException, ExecutionException {
    loop.submit(() -> stopping = isArriving = true).get();
    Thread.sleep(ARRIVAL_MILLIS);
    loop.submit(() -> {
      Stream last = stream;
      stream = null;
      if (last != null) {
        last.call.cancel("the worker stops", null);
      }
      isArriving = false;
      heldBack.forEach(Runnable::run);
      List.copyOf(waiting).forEach(this::release);
      extendOrphans();
    }).get();
    awaitSettled(Ringq.duration("RINGQ_GRACE", "25"));
    loop.submit(() -> List.copyOf(running).forEach(this::release)).get();
    awaitSettled(timeout);
    loop.submit(() -> {
      counts[Outcome.LOST.ordinal()] += held.size(); // Not settled in time.
      Ringq.log("stopped: acked=%d nacked=%d released=%d lost=%d", Arrays.stream(counts).boxed().toArray());
    }).get();
  }

  private void awaitSettled(long most) throws InterruptedException, ExecutionException {
    loop.submit(() -> {
      settled = new CompletableFuture<>();
      checkSettled();
    }).get();
    try {
      settled.get(most, NANOSECONDS);
    } catch (TimeoutException over) {
      Ringq.log("some jobs are not settled after %d s", most / ONE_SECOND);
    }
  }

  private void checkSettled() {
    if (held.isEmpty()) {
      settled.complete(null);
    }
  }

  // --- Streams ---

  private void openStream() {
    if (!stopping) {
      stream = new Stream();
      stub.stream(request.build(), stream);
    }
  }

  private void openStreamIn(long delay) {
    loop.schedule(this::openStream, delay, NANOSECONDS);
  }

  private final class Stream implements ClientResponseObserver<StreamRequest, StreamResponse> {
    private ClientCallStreamObserver<StreamRequest> call;
    private final long begin = System.nanoTime();
    private StreamInfo info;
    private Future<?> watchdog;

    @Override
    public void beforeStart(ClientCallStreamObserver<StreamRequest> call) {
      this.call = call;
      watch(FIRST_MESSAGE);
    }

    private void watch(long silence) {
      if (watchdog != null) {
        watchdog.cancel(false);
      }
      watchdog = loop.schedule(() -> call.cancel("the stream is silent", null), silence, NANOSECONDS);
    }

    @Override
    public void onNext(StreamResponse message) {
      if (stream != this) {
        return; // Cancelled by stop.
      }
      if (message.hasInfo()) {
        info = message.getInfo();
        Ringq.log("stream %s is open, %d jobs in hand", info.getStreamId(), held.size());
        // A revocation that was due between two streams does not come. The answer to an Extend replaces it.
        if (!request.getContinuesStreamId().isEmpty()) {
          extendAll();
        }
        extendTimeout = Long.MAX_VALUE;
        if (info.hasOrphanGrace()) {
          orphanGrace = Durations.toNanos(info.getOrphanGrace());
        }
        request.setContinuesStreamId(info.getStreamId());
        attempt = 0;
      }
      watch(info == null ? FIRST_MESSAGE : 3 * Durations.toNanos(info.getHeartbeatInterval()));
      message.getDeliveriesList().forEach(RingqWorker.this::take);
      message.getRevocationsList().forEach(revocation ->
          lose(held.get(revocation.getReceipt()), "revoked: " + revocation.getReason(), false));
      if (message.getDraining()) {
        Ringq.log("the server drains");
      }
    }

    @Override
    public void onCompleted() {
      watchdog.cancel(false);
      Ringq.log("the stream has ended");
      // Short streams, one after the other, would be a storm.
      boolean isShort = info == null || System.nanoTime() - begin < ONE_SECOND;
      openStreamIn(isShort ? Ringq.pause(attempt++, 250, LONGEST_PAUSE_MILLIS) : 0);
    }

    @Override
    public void onError(Throwable error) {
      watchdog.cancel(false);
      if (stream != this) {
        return; // Cancelled by stop.
      }
      if (info != null) {
        extendOrphans();
      }
      long least = HOPELESS.contains(Status.fromThrowable(error).getCode())
          ? MILLISECONDS.toNanos(LONGEST_PAUSE_MILLIS) : Math.min(Ringq.retryDelay(error), 30 * ONE_SECOND);
      long delay = least + Ringq.pause(attempt++, 250, least > 0 ? 1_000 : LONGEST_PAUSE_MILLIS);
      Ringq.log("the stream has failed: %s; the next one in %d ms", Ringq.text(error), delay / 1_000_000);
      openStreamIn(delay);
    }
  }

  // --- Jobs ---

  private void take(Delivery delivery) {
    if (held.containsKey(delivery.getReceipt())) {
      return;
    }
    Job job = new Job(delivery, (saved, checkpoint) ->
        CompletableFuture.supplyAsync(() -> extend(saved, checkpoint), loop).thenCompose(answer -> answer));
    held.put(job.receipt(), job);
    waiting.add(job);
    setTimers(job, System.nanoTime());
    runWaiting();
  }

  private void runWaiting() {
    while (!stopping && running.size() < concurrency && !waiting.isEmpty()) {
      Job job = waiting.iterator().next();
      waiting.remove(job);
      running.add(job);
      job.task = new FutureTask<>(() -> handler.handle(job)) {
        @Override
        protected void done() {
          loop.execute(() -> handled(job));
        }
      };
      threads.execute(job.task);
    }
  }

  private void handled(Job job) {
    running.remove(job);
    runWaiting();
    if (held.get(job.receipt()) != job || job.settling) {
      return; // Lost or released meanwhile.
    }
    try {
      settleTask(job);
    } catch (RuntimeException error) {
      // Even the text of an exception can throw. A job that is not settled would be extended for ever.
      String text = error.getClass().getName();
      Ringq.log("%s failed: %s", job, text);
      nack(job, NackAction.NACK_ACTION_RETRY, text);
    }
  }

  private void settleTask(Job job) {
    try {
      AckItem.Builder item = AckItem.newBuilder().setReceipt(job.receipt());
      Payload result = job.task.get();
      if (result == null) {
        settle(job, Outcome.ACKED, acks, item.build(), null);
        return;
      }
      AckItem bare = item.build();
      // After a whole lease of failures: its Extends have passed meanwhile, so the result may be the cause.
      settle(job, Outcome.ACKED, acks, item.setResult(result).build(), new Batcher.Instead<>(job.lease, error -> {
        Ringq.log("%s is acked without its result: %s", job, Ringq.text(error)); // Finished work must not run again for it.
        return bare;
      }));
    } catch (ExecutionException error) {
      Throwable cause = error.getCause();
      boolean isDead = cause instanceof DeadLetterException;
      String text = String.valueOf(isDead ? cause.getMessage() : cause.toString());
      Ringq.log("%s failed: %s", job, text);
      nack(job, isDead ? NackAction.NACK_ACTION_DEAD_LETTER : NackAction.NACK_ACTION_RETRY, text);
    } catch (InterruptedException | CancellationException impossible) {
      throw new AssertionError(impossible); // The task is done, and only jobs that are lost or released are cancelled.
    }
  }

  private void release(Job job) {
    waiting.remove(job);
    if (!job.settling) {
      nack(job, NackAction.NACK_ACTION_RELEASE, "");
    }
    cancel(job);
  }

  private void cancel(Job job) {
    if (job.task != null) {
      job.task.cancel(true);
    }
  }

  private void nack(Job job, NackAction action, String error) {
    NackItem item = NackItem.newBuilder().setReceipt(job.receipt()).setAction(action)
        .setError(error.substring(0, Math.min(error.length(), 1_000))).build(); // The server takes 4 KiB.
    settle(job, action == NackAction.NACK_ACTION_RELEASE ? Outcome.RELEASED : Outcome.NACKED, nacks, item, null);
  }

  private <T extends MessageLite> void settle(
      Job job, Outcome outcome, Batcher<T> batcher, T item, Batcher.Instead<T> instead) {
    job.settling = true; // Its lease goes on being extended until the settle is through.
    if (isArriving) {
      heldBack.add(() -> settle(job, outcome, batcher, item, instead));
      return;
    }
    batcher.add(item, timeout, () -> held.get(job.receipt()) == job, instead).whenComplete((answer, error) -> {
      // After a repeated Ack, the job is gone because the first one was applied.
      boolean done = error == null && (answer.failure() == null || (outcome == Outcome.ACKED && answer.repeated()
          && answer.failure().getError() == SettleError.SETTLE_ERROR_NOT_FOUND));
      if (!done) {
        lose(job, error == null ? answer.failure().getError() + " " + answer.failure().getMessage() : Ringq.text(error), true);
      } else if (drop(job)) {
        counts[outcome.ordinal()]++;
      }
    });
  }

  // --- Leases ---

  private void extendAll() {
    held.values().forEach(job -> extend(job, null));
  }

  /** Without a stream the server releases these jobs after the orphan_grace: an Extend that hangs must end in time for a repeat. */
  private void extendOrphans() {
    extendTimeout = orphanGrace / 2;
    extendAll();
  }

  /** Extends a lease, until it succeeds or a later call does it. With a checkpoint it is tried once. */
  private CompletableFuture<Void> extend(Job job, Payload checkpoint) {
    int extension = checkpoint == null ? ++job.extensions : -1;
    ExtendItem.Builder item = ExtendItem.newBuilder().setReceipt(job.receipt());
    if (checkpoint != null) {
      item.setCheckpoint(checkpoint);
    }
    // The deadline is short enough for a repeat before the lease is over.
    return extensions.add(item.build(), Math.min(Math.min(timeout, extendTimeout), job.lease / 4),
        () -> job.extensions == extension && held.get(job.receipt()) == job, null).thenAccept(answer -> {
          if (answer.failure() == null) {
            setTimers(job, answer.sent());
          } else {
            lose(job, "Extend: " + answer.failure().getError(), false);
          }
        });
  }

  /** Sets the next extension and the end of the lease, which began at {@code from} by the monotonic clock. */
  private void setTimers(Job job, long from) {
    if (held.get(job.receipt()) != job) {
      return;
    }
    cancelTimers(job);
    long end = from + job.lease - System.nanoTime();
    job.renewal = loop.schedule(() -> extend(job, null), end - job.lease / 2, NANOSECONDS);
    job.expiry = loop.schedule(() -> lose(job, "its lease is over", true), end, NANOSECONDS);
  }

  private void cancelTimers(Job job) {
    if (job.renewal != null) {
      job.renewal.cancel(false);
      job.expiry.cancel(false);
    }
  }

  /** Stops the work on a job that is no longer this worker's. */
  private void lose(Job job, String reason, boolean isFinal) {
    if (job == null) {
      return;
    }
    job.renewal.cancel(false);
    // If an Ack is under way, it may have been applied, and its answer lost: then the answer to its repeat decides.
    if ((job.settling && !isFinal) || !drop(job)) {
      return;
    }
    counts[Outcome.LOST.ordinal()]++;
    Ringq.log("%s is lost: %s", job, reason);
    cancel(job);
  }

  private boolean drop(Job job) {
    cancelTimers(job);
    waiting.remove(job);
    boolean dropped = held.remove(job.receipt(), job);
    checkSettled();
    return dropped;
  }
}
