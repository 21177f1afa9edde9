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
    public readonly float $lease; // Its length, in seconds.
    public readonly int $fence; // Grows with each delivery of an id.
    public readonly array $headers; // Send `traceparent` on with each request that the handler makes.
    public readonly ?string $payload;
    public readonly ?string $checkpoint; // What an earlier delivery saved.
    public ?string $outcome = null;

    /** @param resource $pipe to the parent */
    public function __construct(public readonly Client $client, public readonly mixed $pipe, array $delivery)
    {
        $delivery += ['attempt' => 1, 'fence' => 0, 'headers' => []]; // JSON leaves out what is empty.
        [$this->topic, $this->id, $this->attempt] = [$delivery['topic'], $delivery['id'], $delivery['attempt']];
        $this->lease = (float) ($delivery['leaseDuration'] ?? 30);
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
    public $pipe; // From the child.
    public string $report = ''; // What came by it: a newline when the handler was done, then how the job ended.
    /** @var array{string, string, string} of a job without a child: action, error, outcome */
    public ?array $nack = null;
    public float $nackAt = 0;
    public int $attempts = 0;

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
    private const MAX_SETTLING = 64; // Children whose handler is done. Each is a process and a connection.

    private Client $client;
    /** @var array<int, Lease> by process id */
    private array $leases = [];
    /** @var array<string, Lease> by receipt: jobs without a child */
    private array $nacks = [];
    /** @var array<int, float> programs that outlive a child which was ended: process group, time of SIGKILL */
    private array $groups = [];
    private array $counts = ['acked' => 0, 'nacked' => 0, 'released' => 0, 'lost' => 0];
    private ?int $pull = null;
    private float $pullAt = 0;
    private int $pullFailures = 0;
    private float $graceEnd = INF; // Finite: the worker stops.

    /** @param \Closure(Job): mixed $handler returns the result of the job: text, null for none, or what becomes JSON */
    public function __construct(private readonly \Closure $handler)
    {
        $this->client = new Client();
    }

    /** Returns after SIGTERM or SIGINT, when each job is settled, at the latest two call timeouts after the grace. */
    public function run(): void
    {
        // Blocked signals wait for sigtimedwait: none is missed between a check and the next wait.
        pcntl_sigprocmask(SIG_BLOCK, [SIGTERM, SIGINT, SIGCHLD]);
        while ($this->graceEnd === INF || ($this->busy() && now() < $this->graceEnd + 2 * Client::timeout())) {
            $this->pull();
            $this->extend();
            $this->sendNacks();
            $due = fn (Lease $lease): float => match (true) {
                $lease->nack !== null => min($lease->nackAt, $lease->extendAt, $lease->end),
                $lease->endedFor !== null => $lease->killAt,
                default => min($lease->extendAt, $lease->end),
            };
            $next = [...array_map($due, array_values($this->leases + $this->nacks)), ...array_values($this->groups)];
            $wait = max(0, min([now() + 0.25, $this->graceEnd > now() ? $this->graceEnd : INF, ...$next]) - now());
            // A wait for the network does not end by a signal or a report, therefore the limit of 0.25 s.
            $wait = $this->client->wait($wait) ? 0 : $wait;
            // All that are there: SIGTERM may have come to a child, too, whose end is looked at below.
            while (($signal = pcntl_sigtimedwait([SIGTERM, SIGINT, SIGCHLD], $info, 0, (int) ($wait * 1e9))) > 0) {
                if ($signal !== SIGCHLD && $this->graceEnd === INF) {
                    $this->graceEnd = now() + (float) setting('RINGQ_GRACE', '25');
                }
                $wait = 0;
            }
            $this->readReports();
            $this->reap();
            $this->endHandlers();
        }
        foreach ($this->leases + $this->groups as $pid => $rest) {
            posix_kill(-$pid, SIGKILL);
        }
        $this->counts['lost'] += count($this->leases) + count($this->nacks);
        log(urldecode('stopped: ' . http_build_query($this->counts, '', ' ')));
    }

    /** Also with an open Pull: its server may be about to hand out jobs, and would not learn that the connection ends. */
    private function busy(): bool
    {
        return $this->leases || $this->nacks || $this->groups || $this->pull !== null;
    }

    /** Asks for as many jobs as can start at once: none waits here while its lease runs. */
    private function pull(): void
    {
        $places = min((int) setting('RINGQ_CONCURRENCY', '4'), (int) setting('RINGQ_CREDIT', '16'), 256);
        $settling = count(array_filter($this->leases, fn (Lease $lease): bool => $lease->report !== ''));
        $free = min($places - (count($this->leases) - $settling), self::MAX_SETTLING - $settling);
        if ($this->pull !== null || $free < 1 || $this->graceEnd < INF || now() < $this->pullAt) {
            return;
        }
        $this->pull = $this->client->start('Pull', [
            'topics' => explode(',', setting('RINGQ_TOPICS', 'examples')),
            'maxJobs' => $free,
            'workerId' => setting('RINGQ_WORKER_ID', gethostname() . '-' . getmypid()),
            'leaseDuration' => setting('RINGQ_LEASE', '30') . 's',
            'wait' => '2s', // A stop waits for the answer.
        ], 2 + Client::timeout(), function (array|CallFailed $answer): void {
            $this->pull = null;
            $this->pullFailures = $answer instanceof CallFailed ? $this->pullFailures + 1 : 0;
            if ($answer instanceof CallFailed) { // Also without the right to pull, which may come back: a long pause.
                $pause = pause($answer->repeatable() ? $this->pullFailures : 10) + min(30, $answer->retryDelay ?? 0);
                log(sprintf('%s; again in %.2f s', $answer->getMessage(), $pause));
                $this->pullAt = now() + $pause;
                return;
            }
            foreach ($answer['deliveries'] ?? [] as $delivery) {
                $lease = new Lease($delivery, now());
                $this->graceEnd < INF ? $this->nack($lease, 'RELEASE', 'the worker stops', 'released') : $this->start($lease);
            }
        });
    }

    /** Extends what has used half of its lease, also while its Ack is repeated. */
    private function extend(): void
    {
        $now = now();
        $due = array_filter($this->leases + $this->nacks, fn (Lease $lease): bool => $lease->extendAt <= $now);
        if ($due) {
            $this->sendExtend(array_values($due));
        }
    }

    /** @param non-empty-list<Lease> $due */
    private function sendExtend(array $due): void
    {
        $now = now();
        foreach ($due as $lease) {
            $lease->extendAt = INF; // Until there is an answer.
        }
        $items = array_map(fn (Lease $lease): array => ['receipt' => $lease->delivery['receipt']], $due);
        // Early enough for a second attempt before the leases end.
        $timeout = min(Client::timeout(), ...array_map(fn (Lease $lease): float => $lease->length / 4, $due));
        $this->client->start('Extend', ['items' => $items], $timeout, function (array|CallFailed $answer) use ($due, $now) {
            $again = null;
            $refused = $answer instanceof CallFailed && !$answer->repeatable() && in_array($answer->status, [3, 7], true);
            if ($refused && count($due) > 1) { // For one item, but none was applied: each alone.
                foreach ($due as $lease) {
                    $this->sendExtend([$lease]);
                }
                return;
            }
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
                } elseif ($lease->nack === null) { // Else the answer to the Nack shows what has become of it.
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
            // A child that settles goes on: its work is done.
            $stopped = $this->graceEnd <= now() && $lease->report === '';
            $reason = $lease->end <= now() ? 'lost' : ($stopped ? 'released' : null);
            if ($lease->killAt <= now()) {
                posix_kill(-$pid, SIGKILL);
                $lease->killAt = INF;
            } elseif ($reason !== null && $lease->endedFor === null) {
                log("job {$lease->delivery['id']}: handler ended, $reason");
                [$lease->endedFor, $lease->killAt] = [$reason, now() + 1];
                $lease->extendAt = $reason === 'lost' ? INF : $lease->extendAt;
                posix_kill(-$pid, SIGTERM); // With the programs that it started.
            }
        }
        foreach ($this->groups as $pid => $killAt) {
            if ($killAt <= now() || !posix_kill(-$pid, 0)) {
                posix_kill(-$pid, SIGKILL);
                unset($this->groups[$pid]);
            }
        }
    }

    /** Forks a child that works on a job. */
    private function start(Lease $lease): void
    {
        $pipes = @stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, STREAM_IPPROTO_IP);
        [$lease->pipe, $pipe] = $pipes ?: [null, null];
        $pid = $pipes ? @pcntl_fork() : -1;
        if ($pid > 0) {
            fclose($pipe);
            stream_set_blocking($lease->pipe, false);
            @posix_setpgid($pid, $pid); // In both processes: neither may run before it is done.
            $this->leases[$pid] = $lease;
        } elseif ($pid < 0) {
            log("job {$lease->delivery['id']}: no process for it: " . (error_get_last()['message'] ?? ''));
            $this->nack($lease, 'RELEASE', 'no process', 'released');
            $this->pullAt = now() + pause(10);
        } else {
            posix_setpgid(0, 0);
            $job = new Job(new Client(), $pipe, $lease->delivery);
            // Also after a fatal error. By SIGKILL: destructors would close the parent's TLS connections.
            register_shutdown_function(function () use ($job): void {
                fwrite($job->pipe, $job->outcome ?? 'handler failed: ' . (error_get_last()['message'] ?? 'it called exit'));
                posix_kill(posix_getpid(), SIGKILL);
            });
            pcntl_sigprocmask(SIG_SETMASK, []);
            $job->outcome = $this->work($job);
            exit;
        }
    }

    /** Runs in the child: the handler, then the Ack or Nack. */
    private function work(Job $job): string
    {
        try {
            $result = self::text($job, ($this->handler)($job));
            [$method, $item] = ['Ack', $result === null ? [] : ['result' => ['text' => $result]]];
        } catch (\Throwable $error) {
            $action = $error instanceof DeadLetter ? 'NACK_ACTION_DEAD_LETTER' : 'NACK_ACTION_RETRY';
            log("job $job->id: attempt $job->attempt: {$error->getMessage()}; trace " . ($job->headers['traceparent'] ?? ''));
            [$method, $item] = ['Nack', ['action' => $action, 'error' => substr($error->getMessage(), 0, 4000)]];
        }
        pcntl_signal(SIGTERM, SIG_IGN); // The answer is worth waiting for, also when the worker stops.
        fwrite($job->pipe, "\n"); // The next job may start.
        $done = $job->client->settle($method, ['receipt' => $job->receipt] + $item, $job->lease);
        return $done ? ($method === 'Ack' ? 'acked' : 'nacked') : 'lost';
    }

    /** The result as text, or none: the work is done, so a wrong result is no failure of the job. */
    private static function text(Job $job, mixed $result): ?string
    {
        try {
            $text = is_string($result) || $result === null ? $result : json_encode($result, JSON_THROW_ON_ERROR);
            return strlen($text ?? '') <= 1 << 20 ? $text : throw new \LengthException('it is above 1 MiB');
        } catch (\Throwable $error) {
            log("job $job->id: acked without its result: {$error->getMessage()}");
            return null;
        }
    }

    /** Which handlers are done. */
    private function readReports(): void
    {
        foreach ($this->leases as $lease) {
            $lease->report .= stream_get_contents($lease->pipe);
            if ($lease->report !== '' && $lease->endedFor === 'released') { // It was done just before the grace was over.
                [$lease->endedFor, $lease->killAt] = [null, INF];
            }
        }
    }

    /** Counts the children that have ended, and settles for those that could not. */
    private function reap(): void
    {
        while (($pid = pcntl_waitpid(-1, $status, WNOHANG)) > 0) {
            $lease = $this->leases[$pid] ?? null;
            if ($lease === null) {
                continue; // Process 1 of a container also gets orphans of others.
            }
            unset($this->leases[$pid]);
            if ($lease->killAt < INF && posix_kill(-$pid, 0)) {
                $this->groups[$pid] = $lease->killAt;
            }
            $signal = pcntl_wifsignaled($status) ? pcntl_wtermsig($status) : 0;
            $end = trim($lease->report . stream_get_contents($lease->pipe)) ?: "handler ended by signal $signal";
            if (isset($this->counts[$end]) || $lease->endedFor === 'lost') {
                $this->counts[isset($this->counts[$end]) ? $end : 'lost']++;
                continue;
            }
            log("job {$lease->delivery['id']}: $end");
            // What stops the worker may send SIGTERM to all of its processes.
            if ($lease->endedFor === 'released' || ($this->graceEnd < INF && $signal === SIGTERM)) {
                $this->nack($lease, 'RELEASE', 'the worker stops', 'released');
            } else {
                $this->nack($lease, 'RETRY', $end, 'nacked');
            }
        }
    }

    private function nack(Lease $lease, string $action, string $error, string $outcome): void
    {
        $lease->nack = ["NACK_ACTION_$action", substr($error, 0, 4000), $outcome];
        $this->nacks[$lease->delivery['receipt']] = $lease;
    }

    /** Settles for the jobs without a child, beside all else, until that is done or the lease is over. */
    private function sendNacks(): void
    {
        foreach ($this->nacks as $receipt => $lease) {
            [$action, $error, $outcome] = $lease->nack;
            if ($lease->end <= now()) {
                unset($this->nacks[$receipt]);
                $this->counts['lost']++;
            } elseif ($lease->nackAt <= now()) {
                [$lease->nackAt, $attempt] = [INF, ++$lease->attempts];
                $item = ['receipt' => $receipt, 'action' => $action, 'error' => $error];
                $done = function (array|CallFailed $answer) use ($lease, $receipt, $outcome, $attempt): void {
                    $settled = Client::settled('Nack', $answer, $attempt);
                    if (is_float($settled)) {
                        $lease->nackAt = now() + $settled;
                    } elseif (isset($this->nacks[$receipt])) {
                        unset($this->nacks[$receipt]);
                        $this->counts[$settled ? $outcome : 'lost']++;
                    }
                };
                $this->client->start('Nack', ['items' => [$item]], Client::timeout(), $done);
            }
        }
    }
}
