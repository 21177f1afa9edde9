<?php
// Works on demo jobs: replace the handler by your own. The machinery is in RingqWorker.php.

declare(strict_types=1);

require __DIR__ . '/RingqWorker.php';

// Runs in a process of its own for each job: open connections to databases here, not before. A job can come twice.
(new Ringq\Worker(function (Ringq\Job $job): mixed {
    try {
        $task = json_decode($job->payload ?? '{}', true, flags: JSON_THROW_ON_ERROR);
    } catch (JsonException $error) {
        throw new Ringq\DeadLetter("the payload is not JSON: {$error->getMessage()}");
    }
    if (!is_array($task)) {
        throw new Ringq\DeadLetter('the payload is not a JSON object');
    }
    if ($task['dead'] ?? false) {
        throw new Ringq\DeadLetter('the payload asks for a dead letter');
    }
    $from = json_decode($job->checkpoint ?? '{}', true)['step'] ?? 0;
    $steps = $task['steps'] ?? 0;
    for ($step = $from; $step < $steps; $step++) {
        usleep(1000 * ($task['step_ms'] ?? 0)); // The work.
        if ($job->attempt <= ($task['fail_until'] ?? 0)) {
            throw new RuntimeException("attempt $job->attempt fails as the payload asks");
        }
        if ($step + 1 < $steps) {
            $job->save(json_encode(['step' => $step + 1]));
        }
    }
    // A database would refuse a former delivery that is still at work: UPDATE … WHERE fence < :fence.
    if ($ledger = getenv('RINGQ_LEDGER')) {
        $line = ['id' => $job->id, 'topic' => $job->topic, 'fence' => $job->fence, 'attempt' => $job->attempt];
        $line += ['steps' => $steps, 'from' => $from, 'by' => 'php'];
        file_put_contents($ledger, json_encode($line) . "\n", FILE_APPEND);
    }
    return json_encode(['steps' => $steps, 'by' => 'php']);
}))->run();
