package dev.ringq.example;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import dev.ringq.v1.Payload;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;

/** The example worker. A team replaces {@code work}. */
final class Worker {
  private static final Gson GSON = new Gson();
  private static final String LEDGER = System.getenv("RINGQ_LEDGER");

  private Worker() {}

  private record Plan(int steps, Integer step_ms, int fail_until, boolean dead) {}

  private static String text(Payload payload) {
    return payload.hasData() ? payload.getData().toStringUtf8() : payload.getText();
  }

  private static Payload json(Object value) {
    return Payload.newBuilder().setText(GSON.toJson(value)).build();
  }

  private static Plan plan(Job job) throws RingqWorker.DeadLetterException {
    String text = text(job.delivery.getPayload());
    try {
      Plan plan = GSON.getAdapter(Plan.class).fromJson(text.isEmpty() ? "{}" : text);
      return plan == null ? new Plan(0, null, 0, false) : plan;
    } catch (JsonParseException | IOException error) {
      throw new RingqWorker.DeadLetterException("the payload is not JSON: " + error.getMessage());
    }
  }

  private static Payload work(Job job) throws Exception {
    var delivery = job.delivery;
    Plan plan = plan(job);
    if (plan.dead) {
      throw new RingqWorker.DeadLetterException("the payload asks for it");
    }
    boolean fails = delivery.getAttempt() <= plan.fail_until;
    int from = delivery.hasCheckpoint()
        ? GSON.fromJson(text(delivery.getCheckpoint()), JsonObject.class).get("step").getAsInt() : 0;
    for (int step = from + 1; step <= plan.steps; step++) {
      Thread.sleep(plan.step_ms == null ? 100 : plan.step_ms); // Interrupted when the job is another worker's.
      if (fails) {
        break;
      }
      if (step < plan.steps) {
        job.save(json(Map.of("step", step)));
      }
    }
    if (fails) {
      throw new IllegalStateException("attempt " + delivery.getAttempt() + " fails, as the payload asks");
    }

    // A job can come twice. A database refuses the older of two workers: UPDATE … SET fence = $1 … WHERE fence < $1.
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("id", delivery.getId());
    line.put("topic", delivery.getTopic());
    line.put("fence", delivery.getFence());
    line.put("attempt", delivery.getAttempt());
    line.put("steps", plan.steps);
    line.put("from", from);
    line.put("by", "java");
    if (LEDGER != null) {
      Files.writeString(Path.of(LEDGER), GSON.toJson(line) + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
    return json(Map.of("steps", plan.steps, "by", "java"));
  }

  public static void main(String[] arguments) throws IOException {
    RingqWorker worker = new RingqWorker(Worker::work);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        worker.stop();
      } catch (InterruptedException | ExecutionException error) {
        Ringq.log("the worker did not stop in order: %s", error);
      }
      Runtime.getRuntime().halt(0); // A JVM that a signal ends exits with 143.
    }));
    worker.start();
  }
}
