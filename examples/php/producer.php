<?php
// Enqueues COUNT jobs. Usage: producer.php COUNT

declare(strict_types=1);

use Ringq\CallFailed;
use function Ringq\{log, pause, setting};

require __DIR__ . '/RingqClient.php';

/** Repeats a whole call until it is answered: the ids of the jobs, or the request id, make that safe. */
function enqueue(Ringq\Client $client, array $request): array
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
foreach (array_chunk($numbers, min(1000, max(1, (int) setting('RINGQ_BATCH', '100')))) as $batch) {
    $jobs = [];
    foreach ($batch as $number) {
        // The context of this producer: with OpenTelemetry, that of the current span.
        $trace = sprintf('00-%s-%s-01', bin2hex(random_bytes(16)), bin2hex(random_bytes(8)));
        $id = $prefix === '-' ? [] : ['id' => "$prefix-$number"];
        $jobs[] = ['topic' => $topic, ...$id, 'payload' => $payload, 'headers' => ['traceparent' => $trace]];
    }
    $requestId = bin2hex(random_bytes(16));
    for ($attempt = 1; $jobs; $attempt++) {
        if ($attempt > 1) {
            usleep((int) (1e6 * pause($attempt)));
        }
        $again = [];
        try {
            $results = enqueue($client, ['jobs' => $jobs, 'requestId' => $requestId]);
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
            } elseif (
                in_array($error['code'], [4, 8, 14], true)
                && !($error['reason'] === 'OUTCOME_UNKNOWN' && $id === '')
            ) {
                log("job $index: {$error['reason']}: " . ($error['message'] ?? '') . '; again');
                // The id that makes the repeat safe. Without it this index would be another job's in the next call.
                $id = $id ?: $jobs[$index]['id'] ?? "r=$requestId=$index";
                $again[] = ['id' => $id] + $jobs[$index];
            } else {
                log("job $index: {$error['reason']}: " . ($error['message'] ?? ''));
                $counts['failed']++;
            }
        }
        $jobs = $again;
    }
}
echo "enqueued={$counts['enqueued']} unchanged={$counts['unchanged']} failed={$counts['failed']}\n";
exit($counts['failed'] > 0 ? 1 : 0);
