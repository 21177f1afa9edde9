package dev.ringq.example;

import com.google.protobuf.MessageLite;
import dev.ringq.v1.SettleError;
import dev.ringq.v1.SettleFailure;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.stream.Collectors;

/**
 * Settles of many jobs in few calls, which are repeated until their answers are final. Calls do not wait for each other:
 * one that fails, hangs or is repeated delays no other. Used on the thread of the loop only.
 */
final class Batcher<T extends MessageLite> {
  private static final long GATHERING_MILLIS = 5;
  private static final int MAX_ITEMS = 1_000;
  private static final int MAX_BYTES = 3 << 20;
  private static final Set<Status.Code> OF_ITEMS = Set.of(Status.Code.INVALID_ARGUMENT, Status.Code.PERMISSION_DENIED);

  /** The answer to one item: {@code failure} is null if it is settled, {@code sent} is the time of the answered call. */
  record Answer(SettleFailure failure, long sent, boolean repeated) {}

  /** What to send in place of an item that is refused, or that failed without an explanation for {@code patience} ns. */
  record Instead<T>(long patience, Function<Throwable, T> item) {}

  private record Entry<T>(T item, long timeout, BooleanSupplier wanted, Instead<T> instead, CompletableFuture<Answer> answer) {}

  /** Makes the call with a timeout. */
  interface Call<T> {
    void send(List<T> items, long timeout, Reply reply);
  }

  /** What a call came to: failures, or its error. */
  interface Reply {
    void done(List<SettleFailure> failures, Throwable error);

    default <A> StreamObserver<A> of(Function<A, List<SettleFailure>> failures) {
      return new StreamObserver<>() {
        @Override
        public void onNext(A answer) {
          done(failures.apply(answer), null);
        }

        @Override
        public void onError(Throwable error) {
          done(List.of(), error);
        }

        @Override
        public void onCompleted() {}
      };
    }
  }

  private final String name;
  private final ScheduledExecutorService loop;
  private final Call<T> call;
  private final BooleanSupplier isAlone;
  private List<Entry<T>> entries = new ArrayList<>();
  private int bytes;

  /** {@code isAlone}: no other item comes soon that could share a call. */
  Batcher(String name, ScheduledExecutorService loop, BooleanSupplier isAlone, Call<T> call) {
    this.name = name;
    this.loop = loop;
    this.isAlone = isAlone;
    this.call = call;
  }

  /**
   * Returns the final answer, or the error if the call must not be repeated or a repeat is not wanted any more.
   * {@code instead} may be null.
   */
  CompletableFuture<Answer> add(T item, long timeout, BooleanSupplier wanted, Instead<T> instead) {
    if (entries.size() == MAX_ITEMS || bytes + item.getSerializedSize() > MAX_BYTES) {
      flush();
    }
    if (entries.isEmpty()) {
      List<Entry<T>> gathered = entries;
      loop.schedule(() -> {
        if (entries == gathered) {
          flush();
        }
      }, isAlone.getAsBoolean() ? 0 : GATHERING_MILLIS, TimeUnit.MILLISECONDS);
    }
    bytes += item.getSerializedSize();
    CompletableFuture<Answer> answer = new CompletableFuture<>();
    entries.add(new Entry<>(item, timeout, wanted, instead, answer));
    return answer;
  }

  /** Sends what was added. */
  private void flush() {
    List<Entry<T>> batch = entries;
    entries = new ArrayList<>();
    bytes = 0;
    send(batch, 0, System.nanoTime());
  }

  /** {@code since} is the begin of unexplained failures of one entry, in a row. */
  private void send(List<Entry<T>> batch, int attempt, long since) {
    if (batch.isEmpty()) {
      return;
    }
    long sent = System.nanoTime();
    long timeout = batch.stream().mapToLong(Entry::timeout).min().getAsLong();
    Reply reply = (failures, error) -> {
      if (error != null) {
        failed(batch, attempt, since, error);
        return;
      }
      Map<Integer, SettleFailure> failed =
          failures.stream().collect(Collectors.toMap(SettleFailure::getIndex, failure -> failure, (first, second) -> first));
      List<Entry<T>> again = new ArrayList<>();
      for (int index = 0; index < batch.size(); index++) {
        SettleFailure failure = failed.get(index);
        if (failure != null && failure.getError() == SettleError.SETTLE_ERROR_UNAVAILABLE) {
          again.add(batch.get(index));
        } else {
          batch.get(index).answer().complete(new Answer(failure, sent, attempt > 0));
        }
      }
      if (!again.isEmpty()) {
        repeat(again, attempt, System.nanoTime(), Status.UNAVAILABLE.withDescription("a shard did not answer").asRuntimeException());
      }
    };
    try {
      call.send(batch.stream().map(Entry::item).toList(), timeout, reply);
    } catch (RuntimeException error) {
      batch.forEach(entry -> entry.answer().completeExceptionally(error)); // It was not sent.
    }
  }

  private void failed(List<Entry<T>> batch, int attempt, long since, Throwable error) {
    if (batch.size() == 1 && batch.get(0).instead() != null && batch.get(0).wanted().getAsBoolean()) {
      Entry<T> only = batch.get(0);
      boolean isRefused = !Ringq.isRepeatable(error) && Status.fromThrowable(error).getCode() == Status.Code.INVALID_ARGUMENT;
      boolean isStuck = Ringq.isUnexplained(error) && System.nanoTime() - since >= only.instead().patience();
      if (isRefused || isStuck) {
        T item = only.instead().item().apply(error);
        send(List.of(new Entry<>(item, only.timeout(), only.wanted(), null, only.answer())), attempt, System.nanoTime());
        return;
      }
    }
    if (Ringq.isRepeatable(error)) {
      repeat(batch, attempt, since, error);
    } else if (batch.size() > 1 && OF_ITEMS.contains(Status.fromThrowable(error).getCode())) {
      // A bad item fails its whole call, and nothing is applied. Alone it fails no other.
      batch.forEach(entry -> send(List.of(entry), attempt, System.nanoTime()));
    } else {
      batch.forEach(entry -> entry.answer().completeExceptionally(error));
    }
  }

  private void repeat(List<Entry<T>> batch, int attempt, long since, Throwable error) {
    long delay = Ringq.retryDelay(error) + Ringq.pause(attempt, 100, 1_000);
    Ringq.log("%s of %d jobs failed: %s; again in %d ms", name, batch.size(), Ringq.text(error), delay / 1_000_000);
    loop.schedule(() -> {
      batch.stream().filter(entry -> !entry.wanted().getAsBoolean())
          .forEach(entry -> entry.answer().completeExceptionally(error));
      List<Entry<T>> again = batch.stream().filter(entry -> entry.wanted().getAsBoolean()).toList();
      boolean isUnexplained = Ringq.isUnexplained(error);
      boolean inHalves = isUnexplained && !name.equals("Extend"); // Perhaps for its size, or for one item.
      int first = inHalves ? (again.size() + 1) / 2 : again.size();
      long begin = isUnexplained && batch.size() == 1 ? since : System.nanoTime();
      send(again.subList(0, first), attempt + 1, begin);
      send(again.subList(first, again.size()), attempt + 1, begin);
    }, delay, TimeUnit.NANOSECONDS);
  }
}
