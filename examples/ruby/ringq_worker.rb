# frozen_string_literal: true

# The worker's machinery. One thread, the loop in `run`, owns all state; the stream, the calls and the handlers run in
# threads of their own and hand their results to it as blocks. So there are no locks but that of the event list.

require_relative 'ringq_client'

module Ringq
  # Raise it for a job that can never succeed. Any other exception is a failure that is retried.
  class DeadLetter < StandardError; end

  # The job was taken away or the worker stops: let it pass. An Exception, so that `rescue => e` does not catch it.
  class Cancelled < Exception; end # rubocop:disable Lint/InheritException

  # Blocks for the loop's thread. Queue#pop has a timeout from Ruby 3.2 only.
  class Events
    def initialize = (@mutex, @filled, @list = Mutex.new, ConditionVariable.new, [])

    def post(&block) = @mutex.synchronize { @list << block and @filled.signal }

    def take(seconds)
      @mutex.synchronize do
        @filled.wait(@mutex, seconds) if @list.empty? && seconds.positive?
        @list.tap { @list = [] }
      end
    end
  end

  # What the handler sees of a job.
  class Job
    attr_reader :delivery, :payload, :checkpoint

    def initialize(delivery, client)
      @delivery, @client = delivery, client
      # Bytes or nil. `delivery` has `id`, `topic`, `attempt`, `fence`, `headers` and the rest.
      @payload, @checkpoint = [delivery.payload, delivery.checkpoint].map { |given| given[given.kind.to_s] if given&.kind }
      @mutex, @changed, @cancelled = Mutex.new, ConditionVariable.new, false
    end

    # The producer's trace context: send it on with each request that the handler makes.
    def traceparent = delivery.headers['traceparent'].to_s

    # Call it between steps of work: raises Cancelled once the job is no longer this worker's.
    def check! = (raise Cancelled if @cancelled)

    # Waits, but not longer than the job is this worker's.
    def wait(seconds)
      ends = Ringq.now + seconds
      @mutex.synchronize { @changed.wait(@mutex, ends - Ringq.now) until @cancelled || Ringq.now >= ends }
      check!
    end

    # Stores up to 64 KiB for the next delivery, should this one not come to its end.
    def save(checkpoint)
      check!
      item = V1::ExtendItem.new(receipt: delivery.receipt, checkpoint: V1::Payload.new(text: checkpoint))
      failure = @client.call(:extend, V1::ExtendRequest.new(items: [item])).failures.first
      return unless failure

      Ringq.log("job #{delivery.id}: checkpoint not saved: #{failure.error}")
      cancel if %i[SETTLE_ERROR_STALE SETTLE_ERROR_NOT_FOUND].include?(failure.error)
      check!
    rescue CallFailed => e
      Ringq.log("job #{delivery.id}: checkpoint not saved: #{e.message}")
    end

    def cancel = @mutex.synchronize { (@cancelled = true) and @changed.broadcast }
  end

  # A job in hand. `settle_at` is nil while its Ack or Nack is on its way, and before there is one, which shares a call of
  # `most` items. `since` is the begin of unexplained failures of its own call, in a row.
  Entry = Struct.new(:job, :state, :length, :ends, :extend_at, :verb, :item, :outcome, :settle_at, :tries, :most, :since) do
    def receipt = job.delivery.receipt

    # Keeps an Extend that was asked for while one was on its way.
    def renew(from)
      self.ends = from + length
      self.extend_at = from + (length / 2) if extend_at == Worker::NEVER
    end
  end

  # Runs the handler, a block that gets a Job. If its value is a String, that is the result.
  class Worker
    NEVER = Float::INFINITY
    REFUSALS = [GRPC::Core::StatusCodes::INVALID_ARGUMENT, GRPC::Core::StatusCodes::PERMISSION_DENIED].freeze
    MAX_ITEMS, MAX_BYTES = 1000, 3 << 20 # Of a call; the server takes 4 MiB.
    ARRIVAL_TIME = 0.2 # A stopped worker reads on: a job that never arrives would wait for the orphan grace, as after a crash.

    def initialize(&handler)
      @handler, @client, @events = handler, Client.new, Events.new
      @entries = {} # By receipt, in the order of arrival.
      @recent = {} # The last receipts that left @entries: a message that comes twice must not start a job twice.
      @counts = { acked: 0, nacked: 0, released: 0, lost: 0 }
      @connect_at, @failures, @extend_failures, @stream_id, @heartbeat, @orphan_grace = Ringq.now, 0, 0, '', 20.0, 5.0
      @silent_at = @read_end = @grace_end = @last_end = NEVER
      @settle_from = 0
      @running = 0 # Threads of handlers, also of those whose job is lost.
    end

    # Returns after SIGTERM or SIGINT, when each job is settled, at the latest two call timeouts after the grace.
    def run
      # A signal handler may not lock a mutex, but may start a thread.
      %w[TERM INT].each { |signal| trap(signal) { Thread.new { @events.post { stop } } } }
      until (@stopping && @read_end == NEVER && @entries.empty?) || Ringq.now >= @last_end
        work(Ringq.now)
        @events.take([next_time - Ringq.now, 60].min).each(&:call)
      end
      @stream&.cancel
      @entries.each_value.to_a.each { |entry| lose(entry, 'the worker ends') }
      Ringq.log("stopped: #{@counts.map { |name, count| "#{name}=#{count}" }.join(' ')}")
    end

    private

    def work(now)
      connect if !@stream && !@stopping && now >= @connect_at
      broken(CallFailed.new(:stream, StandardError.new('no message for three heartbeats'))) if now >= @silent_at
      @entries.values.each { |entry| lose(entry, 'its lease is over') if now >= entry.ends }
      now >= @grace_end ? end_grace : start_handlers
      end_stream if now >= @read_end
      extend_due(now)
      settle_due(now)
    end

    def next_time
      times = @entries.each_value.flat_map { |entry| [entry.ends, entry.extend_at, entry.settle_at || NEVER] }
      [*times, @silent_at, @read_end, @grace_end, @last_end, @stream || @stopping ? NEVER : @connect_at].min
    end

    def call(method, request, timeout = @client.timeout, &done)
      Thread.new do
        answer = begin
          @client.call(method, request, timeout)
        rescue CallFailed => e
          e
        end
        @events.post { done.call(answer) }
      end
    end

    def connect
      @stream = stream = @client.stream(V1::StreamRequest.new(
        topics: Ringq.setting('TOPICS', 'examples').split(','), max_in_flight: Ringq.setting('CREDIT', '16').to_i,
        worker_id: Ringq.setting('WORKER_ID', "#{Socket.gethostname}-#{Process.pid}"), continues_stream_id: @stream_id,
        lease_duration: duration(Ringq.setting('LEASE', '30').to_r)
      ))
      @informed, @connected_at, @silent_at = false, Ringq.now, Ringq.now + @client.timeout # The first message comes at once.
      Thread.new do
        stream.execute.each { |message| @events.post { received(message) if @stream.equal?(stream) } }
        @events.post { broken(nil) if @stream.equal?(stream) }
      rescue StandardError => e
        @events.post { broken(CallFailed.new(:stream, e)) if @stream.equal?(stream) }
      end
    end

    def received(message)
      if message.info
        @informed, @failures, @stream_id = true, 0, message.info.stream_id
        @heartbeat = message.info.heartbeat_interval&.to_f || 20.0
        @orphan_grace = message.info.orphan_grace&.to_f || 5.0
        extend_all # Shows what was revoked between two streams.
      end
      @silent_at = Ringq.now + (3 * @heartbeat)
      message.revocations.each do |revocation|
        entry = @entries[revocation.receipt]
        lose(entry, "revoked, #{revocation.reason}") if entry
      end
      message.deliveries.each do |delivery|
        next if @entries.key?(delivery.receipt) || @recent.key?(delivery.receipt)

        entry = Entry.new(Job.new(delivery, @client), :waiting, delivery.lease_duration&.to_f || 30.0, 0, NEVER)
        entry.renew(Ringq.now)
        @entries[delivery.receipt] = entry
      end
    end

    # The stream has ended: with OK (nil), by an error or by silence.
    def broken(error)
      @stream.cancel
      @stream, @silent_at, @failures = nil, NEVER, @failures + 1
      # Not at once after a stream that ended at once: a server that does so would get one after the other.
      return @connect_at = Ringq.now if error.nil? && @informed && Ringq.now - @connected_at >= 1

      extend_all if @informed # Or the server gives the jobs to others after orphan_grace.
      pause = Ringq.pause(rights?(error) ? @failures : 10) + [error&.delay || 0, 30].min
      Ringq.log("#{error ? error.message : 'stream: ended at once'}; again in #{pause.round(2)} s")
      @connect_at = Ringq.now + pause
    end

    # Without them they may come back, but a fast repeat is of no use.
    def rights?(error) = error.nil? || error.repeatable?

    def extend_all = @entries.each_value { |entry| entry.extend_at = Ringq.now }

    def extend_due(now)
      # Early enough for a second attempt within the lease, or the grace of a broken stream.
      timeout = [@client.timeout, @stream && @informed ? NEVER : @orphan_grace / 2].min
      @entries.each_value.select { |entry| now >= entry.extend_at }.each_slice(MAX_ITEMS) { |due| send_extend(due, timeout) }
    end

    def send_extend(due, timeout)
      now = Ringq.now
      due.each { |entry| entry.extend_at = NEVER } # Until there is an answer.
      items = due.map { |entry| V1::ExtendItem.new(receipt: entry.receipt) }
      call(:extend, V1::ExtendRequest.new(items: items), [timeout, *due.map { |entry| entry.length / 4 }].min) do |answer|
        next due.each { |entry| send_extend([entry], timeout) if in_hand?(entry) } if due.size > 1 && refused?(answer)

        @extend_failures = answer.is_a?(CallFailed) ? @extend_failures + 1 : 0
        each_result(due, answer, Ringq.pause(@extend_failures + 1, 0.5)) do |entry, error, again_at|
          if again_at then entry.extend_at = again_at
          elsif error.nil? then entry.renew(now) # From when it was sent: never longer than at the server.
          elsif answer.is_a?(CallFailed) then entry.extend_at = Ringq.now + 5 # No right to it, for example, which may return.
          elsif entry.state != :settling then lose(entry, error) # Else the answer to its Ack shows what has become of it.
          end
        end
      end
    end

    # Yields each entry that is still in hand with its error (nil: done) and, if a repeat is right, the time for it: one time
    # for all, so that they share the next call, too.
    def each_result(entries, answer, pause)
      failed = answer.is_a?(CallFailed)
      Ringq.log(answer.message) if failed
      failures = failed ? {} : answer.failures.to_h { |failure| [failure.receipt, failure.error] }
      again_at = Ringq.now + ((failed && answer.delay) || 0) + pause
      entries.each do |entry|
        next unless in_hand?(entry)

        error = failed ? answer.message : failures[entry.receipt]
        yield entry, error, (failed ? answer.repeatable? : error == :SETTLE_ERROR_UNAVAILABLE) ? again_at : nil
      end
    end

    def start_handlers
      free = Ringq.setting('CONCURRENCY', '4').to_i - @running
      return if @stopping || free < 1

      @entries.each_value.lazy.select { |entry| entry.state == :waiting }.first(free).each do |entry|
        entry.state = :running
        @running += 1
        Thread.new do
          handle(entry)
        ensure
          @events.post { @running -= 1 }
        end
      end
    end

    # In a thread of its own.
    def handle(entry)
      result = @handler.call(entry.job) # A block has a last value in any case: only a String is meant as a result.
      item = V1::AckItem.new(receipt: entry.receipt, result: storable?(entry, result) ? payload(result) : nil)
      @events.post { settle(entry, :ack, item, :acked) if entry.state == :running }
    rescue Cancelled
      nil
    rescue Exception => e # rubocop:disable Lint/RescueException -- also NotImplementedError, SystemExit and such.
      action = e.is_a?(DeadLetter) ? :NACK_ACTION_DEAD_LETTER : :NACK_ACTION_RETRY
      Ringq.log("job #{entry.job.delivery.id}: #{e.class}: #{e.message}; #{action}; trace #{entry.job.traceparent}")
      @events.post { nack(entry, action, e.message, :nacked) if entry.state == :running }
    end

    def storable?(entry, result)
      return false unless result.is_a?(String)
      return true if result.bytesize <= 1 << 20

      Ringq.log("job #{entry.job.delivery.id}: acked without its result, which is above 1 MiB")
      false
    end

    # protobuf sends text that is not UTF-8, and the server refuses the whole call.
    def payload(result)
      utf8 = result.dup.force_encoding('UTF-8')
      utf8.valid_encoding? ? V1::Payload.new(text: utf8) : V1::Payload.new(data: result.b)
    end

    def nack(entry, action, text, outcome)
      item = V1::NackItem.new(receipt: entry.receipt, action: action, error: text.dup.force_encoding('UTF-8').scrub[0, 1000])
      settle(entry, :nack, item, outcome)
    end

    # In a few milliseconds, together with others; at once if there is no other job.
    def settle(entry, verb, item, outcome)
      entry.state, entry.verb, entry.item, entry.outcome = :settling, verb, item, outcome
      entry.tries, entry.most, entry.since = 0, MAX_ITEMS, nil
      entry.settle_at = [Ringq.now + (@entries.size > 1 ? 0.003 : 0), @settle_from].max
    end

    def settle_due(now)
      # Repeats travel apart: the shard that they wait for must not delay what is new.
      groups = @entries.each_value.select(&:settle_at).group_by { |entry| [entry.verb, entry.tries.zero?, entry.most] }
      groups.each do |(verb, fresh, most), group|
        due = group.select { |entry| now >= entry.settle_at }
        batches(fresh && due.any? ? group : due, most) { |batch| send_settles(verb, batch) }
      end
    end

    def batches(entries, most)
      batch, bytes = [], 0
      entries.each do |entry|
        size = entry.item.class.encode(entry.item).bytesize
        (yield batch) && (batch, bytes = [], 0) if batch.size == most || (batch.any? && bytes + size > MAX_BYTES)
        batch << entry
        bytes += size
      end
      yield batch if batch.any?
    end

    def send_settles(verb, batch)
      batch.each { |entry| entry.settle_at = nil }
      request = (verb == :ack ? V1::AckRequest : V1::NackRequest).new(items: batch.map(&:item))
      call(verb, request) do |answer|
        note_unexplained(batch, answer)
        # One bad item, such as a result that is too large, must not cost the others their Ack: each one alone, and without
        # its result if that does not help. Finished work must not run again for it.
        alone = batch.size > 1 ? refused?(answer) : bare(batch.first, answer)
        next batch.each { |entry| send_settles(verb, [entry]) if in_hand?(entry) } if alone

        tries = batch.map { |entry| entry.tries += 1 }.max
        each_result(batch, answer, Ringq.pause(tries, 2.0)) do |entry, error, again_at|
          # NOT_FOUND: an earlier attempt was applied, and the record is forgotten.
          if error.nil? || (error == :SETTLE_ERROR_NOT_FOUND && entry.tries > 1) then finish(entry, entry.outcome)
          elsif again_at then entry.settle_at = again_at
          else lose(entry, error)
          end
        end
      end
      true
    end

    def in_hand?(entry) = @entries[entry.receipt].equal?(entry)

    # For one item, but none was applied.
    def refused?(answer) = answer.is_a?(CallFailed) && !answer.repeatable? && REFUSALS.include?(answer.code)

    # After such a failure the call is repeated in two halves: it may be too large for a proxy, or one item is the cause.
    def note_unexplained(batch, answer)
      unexplained = answer.is_a?(CallFailed) && answer.unexplained?
      batch.each do |entry|
        entry.most = (batch.size + 1) / 2 if unexplained
        entry.since = unexplained && batch.size == 1 ? entry.since || Ringq.now : nil
      end
    end

    # Drops the result of an Ack that is alone and cannot go with it, if there is one.
    def bare(entry, answer)
      refused = refused?(answer) && answer.code == GRPC::Core::StatusCodes::INVALID_ARGUMENT
      stuck = entry.since && Ringq.now - entry.since >= entry.length # Its Extends have passed meanwhile.
      return unless entry.verb == :ack && entry.item.result && (refused || stuck)

      Ringq.log("job #{entry.job.delivery.id}: again without its result: #{answer.message}")
      entry.item.clear_result
      true
    end

    def lose(entry, reason)
      Ringq.log("job #{entry.job.delivery.id}: lost while #{entry.state}: #{reason}")
      entry.job.cancel
      finish(entry, :lost)
    end

    def finish(entry, outcome)
      entry.state = outcome
      @counts[outcome] += 1
      @entries.delete(entry.receipt)
      @recent[entry.receipt] = true
      @recent.shift if @recent.size > 1000
    end

    # Running jobs go on, the others go back, also those that are on their way here.
    def stop
      return if @stopping

      @stopping, @grace_end = true, Ringq.now + Ringq.setting('GRACE', '25').to_f
      @settle_from = @read_end = Ringq.now + ARRIVAL_TIME # Each settle before would bring another job.
      @last_end = @grace_end + (2 * @client.timeout)
    end

    def end_stream
      @read_end = @silent_at = NEVER
      @stream&.cancel
      @stream = nil
      release { |entry| entry.state == :waiting }
      extend_all # Or the server releases them, too, when the orphan grace is over.
    end

    def end_grace
      @grace_end = NEVER
      release { |entry| %i[waiting running].include?(entry.state) }
    end

    def release(&which)
      @entries.each_value.select(&which).each do |entry|
        entry.job.cancel
        nack(entry, :NACK_ACTION_RELEASE, 'the worker stops', :released)
      end
    end

    def duration(seconds)
      Google::Protobuf::Duration.new(seconds: seconds.floor, nanos: ((seconds % 1) * 1_000_000_000).to_i)
    end
  end
end
