package dev.ringq.example;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Resolves {@code list:///a:7700,b:7700}: grpc-java has no target of several servers. */
final class ServerListResolver extends NameResolver {
  private final String[] servers;
  private final Args arguments;
  private Listener2 listener;
  private Future<?> retry;

  private ServerListResolver(String servers, Args arguments) {
    this.servers = servers.split(",");
    this.arguments = arguments;
  }

  @Override
  public String getServiceAuthority() {
    return servers[0];
  }

  @Override
  public void start(Listener2 listener) {
    this.listener = listener;
    refresh();
  }

  /** Called also when a connection is lost: by then a name may have another address. */
  @Override
  public void refresh() {
    arguments.getOffloadExecutor().execute(() -> {
      List<EquivalentAddressGroup> found = new ArrayList<>();
      List<String> unknown = new ArrayList<>();
      for (String server : servers) {
        URI uri = URI.create("ringq://" + server);
        // With TLS the certificate is compared with the name of the server, not with that of the list.
        Attributes authority = Attributes.newBuilder()
            .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, server).build();
        try {
          for (InetAddress address : InetAddress.getAllByName(uri.getHost())) {
            found.add(new EquivalentAddressGroup(new InetSocketAddress(address, uri.getPort()), authority));
          }
        } catch (UnknownHostException error) {
          unknown.add(server);
          Ringq.log("the server %s has no address", server);
        }
      }
      ResolutionResult result = ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(found)).build();
      arguments.getSynchronizationContext().execute(() -> {
        shutdown();
        if (!unknown.isEmpty()) {
          retry = arguments.getScheduledExecutorService().schedule(this::refresh, 2, TimeUnit.SECONDS);
        }
        listener.onResult2(result);
      });
    });
  }

  @Override
  public void shutdown() {
    if (retry != null) {
      retry.cancel(false);
    }
  }

  static final class Provider extends NameResolverProvider {
    @Override
    public NameResolver newNameResolver(URI target, Args arguments) {
      return target.getScheme().equals("list") ? new ServerListResolver(target.getPath().substring(1), arguments) : null;
    }

    @Override
    public String getDefaultScheme() {
      return "list";
    }

    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return 0; // Below that of dns, whose scheme stays the default.
    }
  }
}
