import com.google.protobuf.Empty;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Calls AdminService/GetServerInfo once and prints one line: what came back, or the error as grpc-java has it, with its
 * causes. A token in RINGQ_TOKEN goes with the call.
 *
 * <p>usage: Client [-ca FILE [-cert FILE -key FILE]] HOST:PORT; without -ca the connection has no TLS
 */
public final class Client {
  private static final MethodDescriptor<Empty, Empty> METHOD =
      // The request has no fields, and Empty keeps those of the answer as unknown ones: no generated code is needed.
      MethodDescriptor.<Empty, Empty>newBuilder()
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("ringq.v1.AdminService/GetServerInfo")
          .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .build();
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private Client() {}

  public static void main(String[] arguments) throws IOException, InterruptedException {
    Map<String, String> flags = new HashMap<>();
    int next = 0;
    for (; next + 2 < arguments.length; next += 2) {
      flags.put(arguments[next], arguments[next + 1]);
    }
    if (next + 1 != arguments.length || !List.of("-ca", "-cert", "-key").containsAll(flags.keySet())) {
      System.err.println("usage: Client [-ca FILE [-cert FILE -key FILE]] HOST:PORT");
      System.exit(2);
    }
    ManagedChannel channel = Grpc.newChannelBuilder(arguments[next], credentials(flags)).build();
    String line;
    boolean failed = true;
    try {
      int length = call(channel);
      failed = length == 0;
      line = failed ? "the answer is empty" : length + " bytes";
    } catch (StatusRuntimeException error) {
      line = line(error);
    }
    System.out.println(line);
    // The end of the channel is awaited: the server is to get what TLS still has to send.
    channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    System.exit(failed ? 1 : 0);
  }

  /** Returns the length of the answer in bytes. */
  private static int call(Channel channel) {
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(30, TimeUnit.SECONDS);
    Empty request = Empty.getDefaultInstance();
    return ClientCalls.blockingUnaryCall(withToken(channel), METHOD, options, request).getSerializedSize();
  }

  private static ChannelCredentials credentials(Map<String, String> flags) throws IOException {
    if (!flags.containsKey("-ca")) {
      return InsecureChannelCredentials.create();
    }
    TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
    tls.trustManager(new File(flags.get("-ca")));
    if (flags.containsKey("-cert")) {
      tls.keyManager(new File(flags.get("-cert")), new File(flags.get("-key")));
    }
    return tls.build();
  }

  private static Channel withToken(Channel channel) {
    String token = System.getenv("RINGQ_TOKEN");
    if (token == null) {
      return channel;
    }
    Metadata headers = new Metadata();
    headers.put(AUTHORIZATION, "Bearer " + token);
    return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
  }

  /** Returns the first lines of the error and of its causes: that of the error alone often has none. */
  private static String line(Throwable error) {
    List<String> parts = new ArrayList<>();
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      String text = String.valueOf(cause.getMessage()).lines().findFirst().orElse("");
      String part = cause == error ? text : cause.getClass().getSimpleName() + ": " + text;
      if (parts.isEmpty() || !parts.get(parts.size() - 1).contains(text)) {
        parts.add(part);
      }
    }
    return String.join(": ", parts);
  }
}
