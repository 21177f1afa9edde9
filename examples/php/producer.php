<?php
// Enqueues COUNT jobs. Usage: producer.php COUNT

declare(strict_types=1);

use Ringq\CallFailed;
use function Ringq\{log, now, pause, setting};

require __DIR__ . '/RingqClient.php';

/**
 * Repeats a whole call. The ids of the jobs, or the request id, make that safe while the records of the jobs live: a job may
 * be done soon after a first attempt whose answer was lost. Hence an end of the repeats long before that of the `retention`.
 */
function enqueue(Ringq\Client $client, array $request, float $repeatUntil): array
{
    for ($attempt = 1;; $attempt++) {
        try {
            return $client->call('BatchEnqueue', $request)['results'];
        } catch (CallFailed $error) {
            // OUTCOME_UNKNOWN without RetryInfo answers a repeat that came too late: nothing was written now.
            $late = $error->reason === 'OUTCOME_UNKNOWN' && $error->retryDelay === null;
            if ($late || !$error->repeatable()) {
                throw $error;
            }
            $seconds = pause($attempt) + ($error->retryDelay ?? 0);
            if (now() + $seconds > $repeatUntil) {
                throw new CallFailed("{$error->getMessage()}; the jobs may be stored", $error->status, $error->reason);
            }
            log(sprintf('%s; again in %.2f s', $error->getMessage(), $seconds));
            usleep((int) ($seconds * 1e6));
        }
    }
}

$topic = explode(',', setting('RINGQ_TOPICS', 'examples'))[0];
$prefix = setting('RINGQ_PREFIX', bin2hex(random_bytes(6)));
$payload = ['text' => setting('RINGQ_PAYLOAD', '{"steps":2,"step_ms":10}')];
$numbers = (int) ($argv[1] ?? 0) > 0 ? range(0, (int) $argv[1] - 1) : exit("usage: producer.php COUNT\n");
$counts = ['enqueued' => 0, 'unchanged' => 0, 'failed' => 0];
$client = new Ringq\Client();
// A call has at most 1,000 jobs and 4 MiB.
$most = max(1, min(1000, intdiv(3 << 20, strlen($payload['text']) + 500)));
foreach (array_chunk($numbers, max(1, min($most, (int) setting('RINGQ_BATCH', '100')))) as $batch) {
    $jobs = [];
    foreach ($batch as $number) {
        // The context of this producer: with OpenTelemetry, that of the current span.
        $trace = sprintf('00-%s-%s-01', bin2hex(random_bytes(16)), bin2hex(random_bytes(8)));
        $id = $prefix === '-' ? [] : ['id' => "$prefix-$number"];
        $jobs[] = ['topic' => $topic, ...$id, 'payload' => $payload, 'headers' => ['traceparent' => $trace]]
            + ['retention' => '3600s'];
    }
    $requestId = bin2hex(random_bytes(16));
    $repeatUntil = now() + 900;
    for ($attempt = 1; $jobs; $attempt++) {
        if ($attempt > 1) {
            usleep((int) (1e6 * pause($attempt)));
        }
        $again = [];
        try {
            $results = enqueue($client, ['jobs' => $jobs, 'requestId' => $requestId], $repeatUntil);
        } catch (CallFailed $error) {
            log("{$error->getMessage()}; " . count($jobs) . ' jobs failed');
            $counts['failed'] += count($jobs);
            break;
        }
        foreach ($results as $index => $result) {
            $error = $result['error'] ?? null;
            $id = $result['id'] ?? '';
            if ($error === null) {
                $counts[$result['outcome'] === 'ENQUEUE_OUTCOME_UNCHANGED' ? 'unchanged' : 'enqueued']++;
                if (in_array($result['state'] ?? '', ['JOB_STATE_DEAD', 'JOB_STATE_CANCELLED', 'JOB_STATE_EXPIRED'], true)) {
                    log("job $id exists and will not run: {$result['state']}");
                }
                continue;
            }
            // Without an id a repeat could make a second job.
            $unknown = in_array($error['reason'], ['OUTCOME_UNKNOWN', 'DURABILITY_NOT_REACHED'], true);
            $late = now() > $repeatUntil; // `retention` above.
            if (in_array($error['code'], [4, 8, 14], true) && !$late && !($unknown && $id === '' && $prefix === '-')) {
                log("job $index: {$error['reason']}: " . ($error['message'] ?? '') . '; again');
                // The id that makes the repeat safe. Without it this index would be another job's in the next call.
                $id = $id ?: $jobs[$index]['id'] ?? "r=$requestId=$index";
                $again[] = ['id' => $id] + $jobs[$index];
            } else {
                log("job $index: {$error['reason']}: " . ($error['message'] ?? '') . ($unknown ? '; it may be stored' : ''));
                $counts['failed']++;
            }
        }
        $jobs = $again;
    }
}
echo "enqueued={$counts['enqueued']} unchanged={$counts['unchanged']} failed={$counts['failed']}\n";
exit($counts['failed'] > 0 ? 1 : 0);
