# frozen_string_literal: true

# Enqueues COUNT jobs. Usage: producer.rb COUNT

require 'securerandom'
require_relative 'ringq_client'

# Sends one batch and repeats what may be repeated: the whole call, or single jobs.
class Producer
  attr_reader :counts

  UNKNOWN = %w[OUTCOME_UNKNOWN DURABILITY_NOT_REACHED].freeze
  # Seconds. A repeat is safe while the record of a job lives: so that stays far longer than the repeats last.
  RETENTION, REPEATS = 3600, 900
  ENDED = %i[JOB_STATE_DEAD JOB_STATE_CANCELLED JOB_STATE_EXPIRED].freeze

  def initialize(own_ids)
    @client, @own_ids = Ringq::Client.new, own_ids
    @counts = { enqueued: 0, unchanged: 0, failed: 0 }
  end

  def send_batch(jobs)
    request = Ringq::V1::BatchEnqueueRequest.new(jobs: jobs, request_id: SecureRandom.hex(16))
    @repeat_until = Ringq.now + REPEATS
    (1..).each do |attempt|
      again = sort_results(request, call(request).results)
      break if again.empty?

      request.jobs.replace(again)
      sleep(Ringq.pause(attempt))
    end
  rescue Ringq::CallFailed => e
    Ringq.log("#{e.message}; #{request.jobs.size} jobs failed")
    @counts[:failed] += request.jobs.size
  end

  private

  # The ids of the jobs, or the request id, make a repeat of the call safe, for a time.
  def call(request)
    attempt = 0
    begin
      @client.call(:batch_enqueue, request)
    rescue Ringq::CallFailed => e
      # OUTCOME_UNKNOWN without RetryInfo answers a repeat that came too late: nothing was written now.
      raise if !e.repeatable? || (e.reason == 'OUTCOME_UNKNOWN' && e.delay.nil?)

      pause = Ringq.pause(attempt += 1) + (e.delay || 0)
      late = Ringq.now + pause > @repeat_until
      Ringq.log("#{e.message}; #{late ? 'the jobs may be stored' : "again in #{pause.round(2)} s"}")
      late ? raise : sleep(pause)
      retry
    end
  end

  # Counts the results; returns the jobs to send again.
  def sort_results(request, results)
    results.each_with_index.filter_map do |result, index|
      error = result.error
      if error.nil?
        @counts[result.outcome == :ENQUEUE_OUTCOME_UNCHANGED ? :unchanged : :enqueued] += 1
        Ringq.log("job #{result.id} exists and will not run: #{result.state}") if ENDED.include?(result.state)
        next
      end
      # Without an id a repeat could make a second job.
      unsafe = UNKNOWN.include?(error.reason) && result.id.empty? && !@own_ids
      repeat = Ringq::CallFailed::REPEATABLE.include?(error.code) && !unsafe && Ringq.now < @repeat_until
      fate = UNKNOWN.include?(error.reason) ? 'failed, it may be stored' : 'failed'
      Ringq.log("job #{result.id}: #{error.reason}: #{error.message}; #{repeat ? 'again' : fate}")
      @counts[:failed] += 1 unless repeat
      with_id(request.jobs[index], result.id, "r=#{request.request_id}=#{index}") if repeat
    end
  end

  # The id that makes the repeat safe. Without it the index would be another job's in the next call.
  def with_id(job, named, derived)
    job.id = named.empty? ? derived : named if job.id.empty?
    job
  end
end

count = Integer(ARGV.fetch(0) { abort 'usage: producer.rb COUNT' })
prefix = Ringq.setting('PREFIX', SecureRandom.hex(6))
payload = Ringq.setting('PAYLOAD', '{"steps":2,"step_ms":10}')
producer = Producer.new(prefix != '-')
# A call has at most 1,000 jobs and 4 MiB.
most = ((3 << 20) / (payload.bytesize + 500)).clamp(1, 1000)
(0...count).each_slice(Ringq.setting('BATCH', '100').to_i.clamp(1, most)) do |numbers|
  producer.send_batch(numbers.map do |number|
    Ringq::V1::JobSpec.new(
      topic: Ringq.setting('TOPICS', 'examples').split(',').first, id: prefix == '-' ? '' : "#{prefix}-#{number}",
      payload: Ringq::V1::Payload.new(text: payload),
      retention: Google::Protobuf::Duration.new(seconds: Producer::RETENTION),
      # The context of this producer: with OpenTelemetry, that of the current span.
      headers: { 'traceparent' => "00-#{SecureRandom.hex(16)}-#{SecureRandom.hex(8)}-01" }
    )
  end)
end
puts producer.counts.map { |name, number| "#{name}=#{number}" }.join(' ')
exit(producer.counts[:failed].zero? ? 0 : 1)
