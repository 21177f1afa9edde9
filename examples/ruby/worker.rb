# frozen_string_literal: true

# Works on demo jobs: replace the handler by your own. The machinery is in ringq_worker.rb.

require 'json'
require_relative 'ringq_worker'

def parse(payload)
  task = JSON.parse(payload || '{}')
  raise Ringq::DeadLetter, 'the payload is not a JSON object' unless task.is_a?(Hash)

  { 'steps' => 0, 'step_ms' => 0, 'fail_until' => 0, 'dead' => false }.merge(task)
rescue JSON::ParserError => e
  raise Ringq::DeadLetter, "the payload is not JSON: #{e.message}"
end

# A database would refuse a former delivery that is still at work: UPDATE … WHERE fence < $1.
def write_ledger(line)
  path = Ringq.setting('LEDGER', nil)
  File.open(path, 'a') { |file| file.syswrite("#{JSON.generate(line)}\n") } if path
end

# Runs in a thread of its own. A job can come twice. Calls that it makes pass `job.traceparent` on.
worker = Ringq::Worker.new do |job|
  task = parse(job.payload)
  raise Ringq::DeadLetter, 'the payload asks for a dead letter' if task['dead']

  from = job.checkpoint ? JSON.parse(job.checkpoint)['step'] : 0
  (from...task['steps']).each do |step|
    job.wait(task['step_ms'] / 1000.0) # The work.
    raise "attempt #{job.delivery.attempt} fails as the payload asks" if job.delivery.attempt <= task['fail_until']

    job.save(JSON.generate(step: step + 1)) if step + 1 < task['steps']
  end
  write_ledger(id: job.delivery.id, topic: job.delivery.topic, fence: job.delivery.fence, attempt: job.delivery.attempt,
               steps: task['steps'], from: from, by: 'ruby')
  JSON.generate(steps: task['steps'], by: 'ruby')
end
worker.run
