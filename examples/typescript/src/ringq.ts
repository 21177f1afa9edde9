// What worker and producer share: the connection, calls and their errors.
import { lookup } from "node:dns/promises";
import { readFileSync } from "node:fs";
import { credentials, experimental, Metadata, status } from "@grpc/grpc-js";
import type { CallOptions, ClientUnaryCall, ServiceError } from "@grpc/grpc-js";
import type { Duration } from "../stubs/google/protobuf/duration.js";
import { ErrorInfo, RetryInfo } from "../stubs/google/rpc/error_details.js";
import { Status } from "../stubs/google/rpc/status.js";
import { QueueServiceClient } from "../stubs/ringq/v1/queue_service.js";

const SERVICE_CONFIG = new URL("../../../../deploy/service-config.json", import.meta.url);
const LONGEST_RECONNECT_PAUSE = 2_000; // The default of grpc-js is two minutes.

export const log = (text: string): void => console.error(text);

/** Returns a setting in seconds as milliseconds. */
export const setting = (name: string, seconds: number): number => Number(process.env[name] ?? seconds) * 1000;

export const milliseconds = (value?: Duration): number | undefined => value && value.seconds * 1000 + value.nanos / 1e6;

/** Returns a random pause with full jitter: clients that failed together must not come back together. */
export const pause = (attempt: number, first: number, most: number): number =>
  20 + Math.random() * Math.min(most, first * 2 ** attempt);

/** Resolves `list:a:7700,b:7700`. grpc-js itself takes several IP addresses, but not several names. */
class ListResolver implements experimental.Resolver {
  private timer?: NodeJS.Timeout;

  constructor(private target: experimental.GrpcUri, private listener: experimental.ResolverListener) {}

  /** Also called when a connection is lost: by then a name may have another address. */
  async updateResolution(): Promise<void> {
    const found = await Promise.all(this.target.path.split(",").map(async (server) => {
      const { host, port = 7700 } = experimental.splitHostPort(server)!;
      const addresses = await lookup(host, { all: true }).catch((error: Error) => (log(`${server}: ${error.message}`), []));
      return addresses.map(({ address }) => ({ addresses: [{ host: address, port }] }));
    }));
    clearTimeout(this.timer);
    // grpc-js leaves it to the resolver to try again.
    const retry = found.some((endpoints) => !endpoints.length);
    if (retry) this.timer = setTimeout(() => void this.updateResolution(), LONGEST_RECONNECT_PAUSE).unref();
    this.listener(experimental.statusOrFromValue(found.flat()), {}, null, "");
  }

  destroy(): void {
    clearTimeout(this.timer);
  }

  /** With TLS, the certificate of each server must be valid for the first one's name. */
  static getDefaultAuthority = (target: experimental.GrpcUri): string => target.path.split(",")[0]!;
}
experimental.registerResolver("list", ListResolver);

export function connect(): QueueServiceClient {
  const { RINGQ_SERVER = "127.0.0.1:7700", RINGQ_CA } = process.env;
  const tls = RINGQ_CA ? credentials.createSsl(readFileSync(RINGQ_CA)) : credentials.createInsecure();
  return new QueueServiceClient(RINGQ_SERVER.includes(",") ? `list:${RINGQ_SERVER}` : `dns:${RINGQ_SERVER}`, tls, {
    "grpc.service_config": readFileSync(SERVICE_CONFIG, "utf8"),
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.max_receive_message_length": 16 << 20,
    "grpc.initial_reconnect_backoff_ms": 250,
    "grpc.max_reconnect_backoff_ms": LONGEST_RECONNECT_PAUSE,
  });
}

export function metadata(): Metadata {
  const metadata = new Metadata();
  const token = process.env["RINGQ_TOKEN"]?.trim(); // With a line break it would be refused, and printed in the error.
  if (token) metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

export type Method<Q, A> = (
  request: Q, metadata: Metadata, options: Partial<CallOptions>, done: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

/** Makes one call with a timeout in milliseconds. */
export const unary = <Q, A>(method: Method<Q, A>, request: Q, timeout: number): Promise<A> =>
  new Promise((resolve, reject) => {
    const deadline = Date.now() + timeout;
    method(request, metadata(), { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });

function detail<T>(error: ServiceError, type: string, decode: (value: Buffer) => T): T | undefined {
  const [status = Buffer.alloc(0)] = error.metadata?.get("grpc-status-details-bin") ?? [];
  try {
    const found = Status.decode(status as Buffer).details.find((any) => any.typeUrl.endsWith(`/google.rpc.${type}`));
    return found && decode(found.value);
  } catch {
    return undefined; // A proxy can send anything.
  }
}

export const errorInfo = (error: ServiceError): ErrorInfo | undefined => detail(error, "ErrorInfo", ErrorInfo.decode);

/** Returns how many milliseconds the server asks to wait before a repeat. */
export const retryDelay = (error: ServiceError): number =>
  milliseconds(detail(error, "RetryInfo", RetryInfo.decode)?.retryDelay) ?? 0;

/** A failure that passes by itself, such as an outage. */
export const isPassing = (code: status): boolean =>
  [status.UNAVAILABLE, status.RESOURCE_EXHAUSTED, status.DEADLINE_EXCEEDED].includes(code);

/** An error without ErrorInfo is not of ringq but of a library or a proxy, whatever its code: often the connection is gone. */
export const isRepeatable = (error: ServiceError): boolean =>
  isPassing(error.code) || (error.code !== status.UNIMPLEMENTED && !errorInfo(error));

/** Neither ringq nor an outage: one item of the call may be the cause, as behind a proxy that limits bodies. */
export const isUnexplained = (error: ServiceError): boolean => !isPassing(error.code) && !errorInfo(error);
