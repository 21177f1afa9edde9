// Shared by worker and producer: settings, the connection, and errors of calls.
import { lookup } from "node:dns/promises";
import { readFileSync } from "node:fs";
import { credentials, experimental, InterceptingCall, Metadata, status } from "@grpc/grpc-js";
import type { CallOptions, ClientUnaryCall, Interceptor, ServiceError } from "@grpc/grpc-js";
import type { Duration } from "../stubs/google/protobuf/duration.js";
import { ErrorInfo, RetryInfo } from "../stubs/google/rpc/error_details.js";
import { Status } from "../stubs/google/rpc/status.js";
import { QueueServiceClient } from "../stubs/ringq/v1/queue_service.js";

const SERVICE_CONFIG = new URL("../../../../deploy/service-config.json", import.meta.url);

export const log = (text: string): void => console.error(text);

/** Returns a setting of decimal seconds as milliseconds. */
export const milliseconds = (name: string, seconds: number): number => Number(process.env[name] ?? seconds) * 1000;

/** Returns milliseconds. */
export const duration = (value?: Duration): number | undefined => value && value.seconds * 1000 + value.nanos / 1e6;

/** Returns a random pause with full jitter. 20 ms at least: a pause of nothing would repeat in the same moment. */
export const pause = (attempt: number, first: number, most: number): number =>
  20 + Math.random() * Math.min(most, first * 2 ** attempt);

/** Resolves `list:a:7700,b:7700`: the schemes of grpc-js take several addresses, but not several names. */
class ListResolver implements experimental.Resolver {
  constructor(private target: experimental.GrpcUri, private listener: experimental.ResolverListener) {}

  /** Is called again after each lost connection. A name that has no address now may have one then. */
  updateResolution(): void {
    const servers = this.target.path.split(",").map(async (server) => {
      const { host, port = 7700 } = experimental.splitHostPort(server.trim()) ?? { host: server };
      const found = await lookup(host, { all: true }).catch(() => []);
      return found.map(({ address }) => ({ addresses: [{ host: address, port }] }));
    });
    void Promise.all(servers).then((found) => {
      const none = { code: status.UNAVAILABLE, details: `no address for ${this.target.path}`, metadata: new Metadata() };
      const endpoints = found.flat();
      this.listener(
        endpoints.length ? experimental.statusOrFromValue(endpoints) : experimental.statusOrFromError(none), {}, null, "");
    });
  }

  destroy(): void {}

  /** With TLS the certificate of each server must be valid for the first name. */
  static getDefaultAuthority = (target: experimental.GrpcUri): string => target.path.split(",")[0]!;
}
experimental.registerResolver("list", ListResolver);

export function connect(): QueueServiceClient {
  const { RINGQ_SERVER = "127.0.0.1:7700", RINGQ_TOKEN, RINGQ_CA } = process.env;
  const withToken: Interceptor = (options, next) =>
    new InterceptingCall(next(options), {
      start(metadata, listener, start) {
        if (RINGQ_TOKEN) metadata.set("authorization", `Bearer ${RINGQ_TOKEN}`);
        start(metadata, listener);
      },
    });
  return new QueueServiceClient(
    RINGQ_SERVER.includes(",") ? `list:${RINGQ_SERVER}` : `dns:${RINGQ_SERVER}`,
    RINGQ_CA ? credentials.createSsl(readFileSync(RINGQ_CA)) : credentials.createInsecure(),
    {
      interceptors: [withToken],
      "grpc.service_config": readFileSync(SERVICE_CONFIG, "utf8"),
      "grpc.keepalive_time_ms": 30_000,
      "grpc.max_receive_message_length": 16 << 20,
      // The default grows to two minutes, in which a worker would not notice that its server is back.
      "grpc.initial_reconnect_backoff_ms": 250,
      "grpc.max_reconnect_backoff_ms": 2_000,
    },
  );
}

export type Method<Q, A> = (
  request: Q, metadata: Metadata, options: Partial<CallOptions>, callback: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

/** Makes one call, with a timeout in milliseconds. */
export function unary<Q, A>(method: Method<Q, A>, request: Q, timeout: number): Promise<A> {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + timeout;
    method(request, new Metadata(), { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

/** Returns a detail of the error: ringq sends an ErrorInfo with each of its own, and often a RetryInfo. */
function detail<T>(error: ServiceError, type: string, decode: (value: Buffer) => T): T | undefined {
  const [status = Buffer.alloc(0)] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const found = Status.decode(status as Buffer).details.find((any) => any.typeUrl.endsWith(`/google.rpc.${type}`));
  return found && decode(found.value);
}

export const errorInfo = (error: ServiceError): ErrorInfo | undefined => detail(error, "ErrorInfo", ErrorInfo.decode);

/** Returns the least time in milliseconds before a repeat. */
export function retryDelay(error: ServiceError): number {
  return duration(detail(error, "RetryInfo", RetryInfo.decode)?.retryDelay) ?? 0;
}

/** Returns whether to repeat a call. An error without ErrorInfo is that of a library or a proxy: the connection is gone. */
export function isRepeatable(error: ServiceError): boolean {
  const { UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, UNIMPLEMENTED } = status;
  return [UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED].includes(error.code)
    || (error.code !== UNIMPLEMENTED && !errorInfo(error));
}
