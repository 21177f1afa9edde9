<?php
// The worker's machinery. One process pulls jobs and keeps all of their leases; each job runs in a child process. So a
// handler may block for as long as it likes, run out of memory or crash: its lease is extended beside it, and it is
// ended when the lease is lost.

declare(strict_types=1);

namespace Ringq;

require_once __DIR__ . '/RingqClient.php';

/** The job can never succeed: it becomes a dead letter. Any other exception is a failure that is retried. */
final class DeadLetter extends \RuntimeException {}

/** A job in the child process that works on it. */
final class Job
{
    public readonly string $receipt;
    public readonly string $topic;
    public readonly string $id;
    public readonly int $attempt;
    public readonly int $fence; // Grows with each delivery of an id.
    public readonly array $headers; // Send `traceparent` on with each request that the handler makes.
    public readonly ?string $payload;
    public readonly ?string $checkpoint; // What an earlier delivery saved.
    public ?string $outcome = null;

    public function __construct(public readonly Client $client, array $delivery)
    {
        $delivery += ['attempt' => 1, 'fence' => 0, 'headers' => []]; // JSON leaves out what is empty.
        [$this->topic, $this->id, $this->attempt] = [$delivery['topic'], $delivery['id'], $delivery['attempt']];
        [$this->fence, $this->headers, $this->receipt] = [(int) $delivery['fence'], $delivery['headers'], $delivery['receipt']];
        $bytes = fn (?array $given): ?string => $given ? $given['text'] ?? base64_decode($given['data'] ?? '') : null;
        [$this->payload, $this->checkpoint] = [$bytes($delivery['payload'] ?? null), $bytes($delivery['checkpoint'] ?? null)];
    }

    /** Stores up to 64 KiB for the next delivery, should this one not come to its end. Does not return if the lease is lost. */
    public function save(string $checkpoint): void
    {
        $item = ['receipt' => $this->receipt, 'checkpoint' => ['text' => $checkpoint]];
        try {
            $failure = $this->client->call('Extend', ['items' => [$item]])['failures'][0] ?? ['error' => ''];
        } catch (CallFailed $error) {
            $failure = ['error' => $error->getMessage()];
        }
        if ($failure['error'] !== '') {
            log("job $this->id: checkpoint not saved: {$failure['error']}");
        }
        if (in_array($failure['error'], ['SETTLE_ERROR_STALE', 'SETTLE_ERROR_NOT_FOUND'], true)) {
            $this->outcome = 'lost';
            exit; // Not an exception, which the handler could catch.
        }
    }
}

/** A job in the parent. */
final class Lease
{
    public readonly float $length;
    public float $end;
    public float $extendAt;
    public float $killAt = INF;
    public ?string $endedFor = null; // Why the parent ended the child: `lost` or `released`.
    public $pipe; // From the child: how it ended.

    public function __construct(public readonly array $delivery, float $from)
    {
        $this->length = (float) ($delivery['leaseDuration'] ?? 30); // What is left of it.
        $this->renew($from); // From its arrival, by the monotonic clock.
    }

    public function renew(float $from): void
    {
        [$this->end, $this->extendAt] = [$from + $this->length, $from + $this->length / 2];
    }
}

final class Worker
{
    private Client $client;
    /** @var array<int, Lease> by process id */
    private array $leases = [];
    private array $counts = ['acked' => 0, 'nacked' => 0, 'released' => 0, 'lost' => 0];
    private ?int $pull = null;
    private float $pullAt = 0;
    private int $pullFailures = 0;
    private float $graceEnd = INF; // Finite: the worker stops.

    /** @param \Closure(Job): ?string $handler returns the result of the job */
    public function __construct(private readonly \Closure $handler)
    {
        $this->client = new Client();
    }

    /** Returns after SIGTERM or SIGINT, when each job is settled. */
    public function run(): void
    {
        // Blocked signals wait for sigtimedwait: none is missed between a check and the next wait.
        pcntl_sigprocmask(SIG_BLOCK, [SIGTERM, SIGINT, SIGCHLD]);
        while ($this->graceEnd === INF || $this->leases) {
            $this->pull();
            $this->extend();
            $due = fn (Lease $lease): float => $lease->endedFor ? $lease->killAt : min($lease->extendAt, $lease->end);
            $next = array_map($due, $this->leases);
            $wait = max(0, min([now() + 0.25, $this->graceEnd > now() ? $this->graceEnd : INF, ...$next]) - now());
            // A wait for the network does not end by a signal, therefore the limit of 0.25 s.
            $busy = $this->client->wait($wait);
            $signal = pcntl_sigtimedwait([SIGTERM, SIGINT, SIGCHLD], $info, 0, $busy ? 0 : (int) ($wait * 1e9));
            if (in_array($signal, [SIGTERM, SIGINT], true) && $this->graceEnd === INF) {
                $this->graceEnd = now() + (float) setting('RINGQ_GRACE', '25');
                $this->client->cancel($this->pull ?? 0); // A Pull whose caller goes away takes no job.
            }
            $this->reap();
            $this->endHandlers();
        }
        log(urldecode('stopped: ' . http_build_query($this->counts, '', ' ')));
    }

    /** Asks for as many jobs as can start at once: none waits here while its lease runs. */
    private function pull(): void
    {
        $places = min((int) setting('RINGQ_CONCURRENCY', '4'), (int) setting('RINGQ_CREDIT', '16'), 256);
        $free = $places - count($this->leases);
        if ($this->pull !== null || $free < 1 || $this->graceEnd < INF || now() < $this->pullAt) {
            return;
        }
        $this->pull = $this->client->start('Pull', [
            'topics' => explode(',', setting('RINGQ_TOPICS', 'examples')),
            'maxJobs' => $free,
            'workerId' => setting('RINGQ_WORKER_ID', gethostname() . '-' . getmypid()),
            'leaseDuration' => setting('RINGQ_LEASE', '30') . 's',
            'wait' => '20s',
        ], 20 + Client::timeout(), function (array|CallFailed $answer): void {
            $this->pull = null;
            $this->pullFailures = $answer instanceof CallFailed ? $this->pullFailures + 1 : 0;
            if ($answer instanceof CallFailed) { // Also without the right to pull, which may come back: a long pause.
                $pause = pause($answer->repeatable() ? $this->pullFailures : 10) + min(30, $answer->retryDelay ?? 0);
                log(sprintf('%s; again in %.2f s', $answer->getMessage(), $pause));
                $this->pullAt = now() + $pause;
                return;
            }
            foreach ($answer['deliveries'] ?? [] as $delivery) {
                $this->start(new Lease($delivery, now()), $this->work(...));
            }
        });
    }

    /** Extends what has used half of its lease, also while its Ack is repeated. */
    private function extend(): void
    {
        $now = now();
        $due = array_filter($this->leases, fn (Lease $lease): bool => $lease->extendAt <= $now);
        if (!$due) {
            return;
        }
        foreach ($due as $lease) {
            $lease->extendAt = INF; // Until there is an answer.
        }
        $items = array_map(fn (Lease $lease): array => ['receipt' => $lease->delivery['receipt']], array_values($due));
        // Early enough for a second attempt before the leases end.
        $timeout = min(Client::timeout(), ...array_map(fn (Lease $lease): float => $lease->length / 4, array_values($due)));
        $this->client->start('Extend', ['items' => $items], $timeout, function (array|CallFailed $answer) use ($due, $now) {
            $again = null;
            if ($answer instanceof CallFailed) {
                log($answer->getMessage());
                $again = now() + ($answer->repeatable() ? ($answer->retryDelay ?? 0) + pause(1) : 5);
            }
            $failures = array_column($answer instanceof CallFailed ? [] : $answer['failures'] ?? [], 'error', 'receipt');
            foreach ($due as $lease) {
                $error = $failures[$lease->delivery['receipt']] ?? '';
                if ($again !== null || $error === 'SETTLE_ERROR_UNAVAILABLE') {
                    $lease->extendAt = $again ?? now() + pause(1);
                } elseif ($error === '') {
                    $lease->renew($now); // Counted from when it was sent: never longer than at the server.
                } else {
                    log("job {$lease->delivery['id']}: lease lost: $error");
                    $lease->end = now();
                }
            }
        });
    }

    /** Ends handlers without a lease, and all of them when the grace is over. */
    private function endHandlers(): void
    {
        foreach ($this->leases as $pid => $lease) {
            $reason = $lease->end <= now() ? 'lost' : ($this->graceEnd <= now() ? 'released' : null);
            if ($lease->killAt <= now()) {
                posix_kill(-$pid, SIGKILL);
                $lease->killAt = INF;
            } elseif ($reason !== null && $lease->endedFor === null) {
                log("job {$lease->delivery['id']}: handler ended, $reason");
                [$lease->endedFor, $lease->extendAt, $lease->killAt] = [$reason, INF, now() + 1];
                posix_kill(-$pid, SIGTERM); // With the programs that it started. A child that settles goes on.
            }
        }
    }

    /** Forks a child that works on a job. */
    private function start(Lease $lease, \Closure $task): void
    {
        [$lease->pipe, $pipe] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, STREAM_IPPROTO_IP);
        $pid = pcntl_fork();
        if ($pid > 0) {
            fclose($pipe);
            stream_set_blocking($lease->pipe, false);
            @posix_setpgid($pid, $pid); // In both processes: neither may run before it is done.
            $this->leases[$pid] = $lease;
        } elseif ($pid < 0) {
            log("job {$lease->delivery['id']}: no process for it, it comes again when its lease ends");
        } else {
            posix_setpgid(0, 0);
            $job = new Job(new Client(), $lease->delivery);
            // Also after a fatal error. By SIGKILL: destructors would close the parent's TLS connections.
            register_shutdown_function(function () use ($job, $pipe): void {
                fwrite($pipe, $job->outcome ?? 'handler failed: ' . (error_get_last()['message'] ?? 'it called exit'));
                posix_kill(posix_getpid(), SIGKILL);
            });
            pcntl_sigprocmask(SIG_SETMASK, []);
            $job->outcome = $task($job);
            exit;
        }
    }

    /** Runs in the child: the handler, then the Ack or Nack. */
    private function work(Job $job): string
    {
        try {
            $result = ($this->handler)($job);
            [$method, $item] = ['Ack', $result === null ? [] : ['result' => ['text' => $result]]];
        } catch (\Throwable $error) {
            $action = $error instanceof DeadLetter ? 'NACK_ACTION_DEAD_LETTER' : 'NACK_ACTION_RETRY';
            log("job $job->id: attempt $job->attempt: {$error->getMessage()}; trace " . ($job->headers['traceparent'] ?? ''));
            [$method, $item] = ['Nack', ['action' => $action, 'error' => substr($error->getMessage(), 0, 4000)]];
        }
        return $this->settle($job, $method, $item, $method === 'Ack' ? 'acked' : 'nacked');
    }

    private function settle(Job $job, string $method, array $item, string $outcome): string
    {
        pcntl_signal(SIGTERM, SIG_IGN); // The answer is worth waiting for, also when the worker stops.
        return $job->client->settle($method, ['receipt' => $job->receipt] + $item) ? $outcome : 'lost';
    }

    /** Counts the children that have ended, and settles for those that could not. */
    private function reap(): void
    {
        while (($pid = pcntl_waitpid(-1, $status, WNOHANG)) > 0) {
            $lease = $this->leases[$pid];
            unset($this->leases[$pid]);
            $end = stream_get_contents($lease->pipe) ?: 'handler ended by signal ' . pcntl_wtermsig($status);
            if (isset($this->counts[$end]) || in_array($lease->endedFor, ['lost', 'settled'], true)) {
                $this->counts[isset($this->counts[$end]) ? $end : 'lost']++;
                continue;
            }
            [$action, $outcome] = $lease->endedFor ? ['RELEASE', 'released'] : ['RETRY', 'nacked'];
            log("job {$lease->delivery['id']}: $end");
            $item = ['action' => "NACK_ACTION_$action", 'error' => $lease->endedFor ? 'the worker stops' : $end];
            [$lease->endedFor, $lease->extendAt, $lease->killAt] = ['settled', INF, $lease->end];
            $this->start($lease, fn (Job $job): string => $this->settle($job, 'Nack', $item, $outcome));
        }
    }
}
