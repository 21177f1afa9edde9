<?php
// JSON calls of ringq over HTTP, several at a time: docs/json.md. For the worker and the producer.

declare(strict_types=1);

namespace Ringq;

function setting(string $name, string $default): string
{
    $value = getenv($name);
    return $value === false || $value === '' ? $default : $value;
}

/** Seconds of the monotonic clock: steps of the wall clock must not move leases. */
function now(): float
{
    return hrtime(true) / 1e9;
}

/** A random pause before repeat $attempt (1, 2, …): up to 0.25 s, doubling to $longest. At least a tenth of that. */
function pause(int $attempt, float $longest = 5.0): float
{
    return min($longest, 0.25 * 2 ** min($attempt - 1, 10)) * random_int(100, 1000) / 1000;
}

function log(string $line): void
{
    fwrite(STDERR, $line . "\n");
}

final class CallFailed extends \RuntimeException
{
    /** $status is a code of gRPC; $reason is empty if the error came from a library or a proxy, not from ringq. */
    public function __construct(
        string $message,
        public readonly int $status = 2,
        public readonly string $reason = '',
        public readonly ?float $retryDelay = null,
    ) {
        parent::__construct($message);
    }

    /** DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED and UNAVAILABLE, or of unknown origin. */
    public function repeatable(): bool
    {
        return in_array($this->status, [4, 8, 14], true) || $this->unexplained();
    }

    /** Neither ringq nor an outage: the call itself may be the cause. UNIMPLEMENTED, and too large (413), are sure. */
    public function unexplained(): bool
    {
        return $this->reason === '' && !in_array($this->status, [3, 4, 8, 12, 14], true);
    }
}

final class Client
{
    /** @var string[] */
    private array $servers;
    private int $server;
    private \CurlMultiHandle $multi;
    /** @var array<int, array{\CurlHandle, string, int, callable(array|CallFailed): void}> */
    private array $calls = [];

    public function __construct()
    {
        $this->servers = explode(',', setting('RINGQ_HTTP', 'http://127.0.0.1:7701'));
        $this->server = random_int(0, count($this->servers) - 1);
        $this->multi = curl_multi_init();
    }

    public static function timeout(): float
    {
        return (float) setting('RINGQ_CALL_TIMEOUT', '10');
    }

    /** Begins a call. `wait` runs $done with the answer or the error. The returned number cancels it. */
    public function start(string $method, array $request, float $timeout, callable $done): int
    {
        $server = $this->server;
        $curl = curl_init(rtrim(trim($this->servers[$server]), '/') . "/v1/ringq.v1.QueueService/$method");
        $headers = ['content-type: application/json', 'expect:']; // No `100-continue` round for large bodies.
        if ($token = trim(setting('RINGQ_TOKEN', ''))) { // A file's newline would end the header.
            $headers[] = "authorization: Bearer $token";
        }
        curl_setopt_array($curl, [
            CURLOPT_POSTFIELDS => json_encode(
                $request,
                JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE,
            ),
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT_MS => max(1, (int) ceil($timeout * 1000)),
            CURLOPT_CONNECTTIMEOUT_MS => (int) ceil(min($timeout, 5) * 1000),
        ]);
        if ($ca = getenv('RINGQ_CA')) {
            curl_setopt($curl, CURLOPT_CAINFO, $ca);
        }
        curl_multi_add_handle($this->multi, $curl);
        $this->calls[spl_object_id($curl)] = [$curl, $method, $server, $done];
        return spl_object_id($curl);
    }

    public function cancel(int $call): void
    {
        if (isset($this->calls[$call])) {
            curl_multi_remove_handle($this->multi, $this->calls[$call][0]);
            unset($this->calls[$call]);
        }
    }

    /** Waits up to $seconds for the network and runs what is done. False: there was nothing to wait for. */
    public function wait(float $seconds): bool
    {
        if (!$this->calls) {
            return false;
        }
        curl_multi_exec($this->multi, $running);
        if ($running > 0 && $seconds > 0) {
            curl_multi_select($this->multi, $seconds);
            curl_multi_exec($this->multi, $running);
        }
        while ($info = curl_multi_info_read($this->multi)) {
            $id = spl_object_id($info['handle']);
            [$curl, $method, $server, $done] = $this->calls[$id];
            try {
                $answer = self::answer($method, $curl, $info['result']);
            } catch (CallFailed $answer) {
                // No answer, or this server is leaving: the next call goes to another one.
                if (($answer->reason === '' || $answer->reason === 'DRAINING') && $this->server === $server) {
                    $this->server = ($server + 1) % count($this->servers);
                }
            }
            $this->cancel($id);
            $done($answer);
        }
        return true;
    }

    /** One call, without a repeat. */
    public function call(string $method, array $request): array
    {
        $answer = null;
        $this->start($method, $request, self::timeout(), function (array|CallFailed $given) use (&$answer): void {
            $answer = $given;
        });
        while ($answer === null) {
            $this->wait(1.0);
        }
        return $answer instanceof CallFailed ? throw $answer : $answer;
    }

    /** Acks or nacks one job and repeats that without an end: the parent ends this process when the lease is over. */
    public function settle(string $method, array $item, float $lease): bool
    {
        $since = now(); // Begin of unexplained failures, in a row.
        for ($attempt = 1;; $attempt++) {
            try {
                $answer = $this->call($method, ['items' => [$item]]);
                $since = now();
            } catch (CallFailed $answer) {
                $since = $answer->unexplained() ? $since : now();
                $refused = !$answer->repeatable() && $answer->status === 3;
                $stuck = now() - $since >= $lease; // Its Extends have passed meanwhile.
                if (isset($item['result']) && ($refused || $stuck)) {
                    log("{$answer->getMessage()}; again without the result");
                    unset($item['result']); // Finished work must not run again for it.
                    continue;
                }
            }
            $settled = self::settled($method, $answer, $attempt);
            if (is_bool($settled)) {
                return $settled;
            }
            usleep((int) ($settled * 1e6));
        }
    }

    /** Of one Ack or Nack: true if it is done, false if it is refused for good, else the pause before the next attempt. */
    public static function settled(string $method, array|CallFailed $answer, int $attempt): bool|float
    {
        $failed = $answer instanceof CallFailed;
        $error = $failed ? $answer->getMessage() : $answer['failures'][0]['error'] ?? '';
        if ($error === '' || ($error === 'SETTLE_ERROR_NOT_FOUND' && $attempt > 1)) {
            return true; // NOT_FOUND: an earlier attempt was applied, and the record is forgotten.
        }
        $again = $failed ? $answer->repeatable() : $error === 'SETTLE_ERROR_UNAVAILABLE';
        $pause = pause($attempt, 2.0) + ($failed ? $answer->retryDelay ?? 0 : 0);
        log(($failed ? $error : "$method: $error") . ($again ? sprintf('; again in %.2f s', $pause) : ''));
        return $again ? $pause : false;
    }

    private static function answer(string $method, \CurlHandle $curl, int $result): array
    {
        if ($result !== CURLE_OK) {
            $status = $result === CURLE_OPERATION_TIMEDOUT ? 4 : 14;
            throw new CallFailed("$method: " . (curl_error($curl) ?: curl_strerror($result)), $status);
        }
        $code = curl_getinfo($curl, CURLINFO_RESPONSE_CODE);
        $body = json_decode(curl_multi_getcontent($curl), true);
        if ($code === 200 && is_array($body)) {
            return $body;
        }
        [$reason, $delay] = ['', null];
        foreach ($body['details'] ?? [] as $detail) {
            $reason = $detail['reason'] ?? $reason;
            $delay = isset($detail['retryDelay']) ? (float) $detail['retryDelay'] : $delay;
        }
        $message = "$method: HTTP $code" . rtrim(" $reason") . ': ' . ($body['message'] ?? 'no error of ringq');
        // Of a proxy or a library: what it refuses so, it refuses again.
        $foreign = match ($code) { 413 => 3, 404, 405, 415, 501 => 12, default => 2 };
        throw new CallFailed($message, $body['code'] ?? $foreign, $reason, $delay);
    }
}
