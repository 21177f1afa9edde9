package dev.ringq.example;

import com.google.gson.Gson;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.Durations;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** What worker and producer share: settings, the connection, and errors of calls. Durations are nanoseconds. */
final class Ringq {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final Set<Status.Code> REPEATABLE =
      Set.of(Status.Code.UNAVAILABLE, Status.Code.RESOURCE_EXHAUSTED, Status.Code.DEADLINE_EXCEEDED);
  private static final long LONGEST_RECONNECT_PAUSE_SECONDS = 2;

  private Ringq() {}

  static String setting(String name, String otherwise) {
    return Objects.requireNonNullElse(System.getenv(name), otherwise);
  }

  static long duration(String name, String seconds) {
    return (long) (Double.parseDouble(setting(name, seconds)) * 1e9);
  }

  static void log(String format, Object... arguments) {
    System.err.println(format.formatted(arguments));
  }

  /** Connects to the servers in RINGQ_SERVER. The executor runs the callbacks of calls. */
  static ManagedChannel connect(ScheduledExecutorService executor) throws IOException {
    NameResolverRegistry.getDefaultRegistry().register(new ServerListResolver.Provider());
    String ca = setting("RINGQ_CA", "");
    ChannelCredentials credentials = ca.isEmpty()
        ? InsecureChannelCredentials.create()
        : TlsChannelCredentials.newBuilder().trustManager(new File(ca)).build();
    String servers = setting("RINGQ_SERVER", "127.0.0.1:7700");
    String target = (servers.contains(",") ? "list:///" : "dns:///") + servers;
    ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, credentials)
        .defaultServiceConfig(serviceConfig())
        .keepAliveTime(30, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .maxInboundMessageSize(16 << 20)
        .executor(executor);
    String token = setting("RINGQ_TOKEN", "").strip(); // A line break would be refused, and the token printed.
    if (!token.isEmpty()) {
      Metadata headers = new Metadata();
      headers.put(AUTHORIZATION, "Bearer " + token);
      builder.intercept(MetadataUtils.newAttachHeadersInterceptor(headers));
    }
    ManagedChannel channel = builder.build();
    // The pause between reconnects grows to two minutes, and grpc-java has no option for it.
    executor.scheduleAtFixedRate(() -> {
      if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
        channel.resetConnectBackoff();
      }
    }, LONGEST_RECONNECT_PAUSE_SECONDS, LONGEST_RECONNECT_PAUSE_SECONDS, TimeUnit.SECONDS);
    return channel;
  }

  @SuppressWarnings("unchecked")
  private static Map<String, ?> serviceConfig() throws IOException {
    try (Reader reader = new InputStreamReader(Ringq.class.getResourceAsStream("/service-config.json"))) {
      return new Gson().fromJson(reader, Map.class);
    }
  }

  /** Returns a random pause with full jitter: clients that failed together must not come back together. */
  static long pause(int attempt, long firstMillis, long mostMillis) {
    long most = Math.min(mostMillis, firstMillis << Math.min(attempt, 20));
    return TimeUnit.MILLISECONDS.toNanos(20 + ThreadLocalRandom.current().nextLong(most));
  }

  /** An error without ErrorInfo is not of ringq but of a library or a proxy, whatever its code. */
  static boolean isRepeatable(Throwable error) {
    Status.Code code = Status.fromThrowable(error).getCode();
    return REPEATABLE.contains(code)
        || (code != Status.Code.UNIMPLEMENTED && detail(error, ErrorInfo.getDefaultInstance()).getReason().isEmpty());
  }

  /** Neither ringq nor an outage: one item of the call may be the cause, as behind a proxy that limits bodies. */
  static boolean isUnexplained(Throwable error) {
    return !REPEATABLE.contains(Status.fromThrowable(error).getCode()) && isRepeatable(error);
  }

  /** Returns the error with its causes: that of grpc-java alone is often "io exception". */
  static String text(Throwable error) {
    return error.getCause() == null ? error.getMessage() : error.getMessage() + ": " + text(error.getCause());
  }

  /** Returns how long the server asks to wait before a repeat. */
  static long retryDelay(Throwable error) {
    return Durations.toNanos(detail(error, RetryInfo.getDefaultInstance()).getRetryDelay());
  }

  /** Returns a detail of the error, or the empty message. */
  @SuppressWarnings("unchecked")
  static <T extends Message> T detail(Throwable error, T empty) {
    try {
      com.google.rpc.Status status = StatusProto.fromThrowable(error);
      for (var any : status == null ? com.google.rpc.Status.getDefaultInstance().getDetailsList() : status.getDetailsList()) {
        if (any.is(empty.getClass())) {
          return (T) any.unpack(empty.getClass());
        }
      }
    } catch (InvalidProtocolBufferException | IllegalArgumentException invalid) { // Proxies can send anything.
      log("the details of an error cannot be read: %s", invalid.getMessage());
    }
    return empty;
  }
}
