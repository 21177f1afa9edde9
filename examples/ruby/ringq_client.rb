# frozen_string_literal: true

# A channel to ringq, its calls and their errors: for the worker and the producer.

$LOAD_PATH.unshift(File.join(__dir__, 'stubs'))
require 'socket'
require 'google/protobuf/well_known_types'
require 'google/rpc/error_details_pb'
require 'google/rpc/status_pb'
require 'ringq/v1/queue_service_services_pb'

module Ringq
  def self.setting(name, default) = (value = ENV.fetch("RINGQ_#{name}", '')).empty? ? default : value

  # Seconds of the monotonic clock: steps of the wall clock must not move leases.
  def self.now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # A random pause before repeat 1, 2, …: up to 0.25 s, doubling to `longest`; at least a tenth of that.
  def self.pause(attempt, longest = 5.0) = [longest, 0.25 * 2**[attempt - 1, 10].min].min * rand(0.1..1.0)

  def self.log(line) = $stderr.write("#{line}\n") # One write: lines of threads do not mix.

  # A failed call. `reason` is empty if the error came from a library or a proxy, not from ringq.
  class CallFailed < StandardError
    attr_reader :code, :reason, :delay

    def initialize(method, error)
      @code = error.is_a?(GRPC::BadStatus) ? error.code : GRPC::Core::StatusCodes::UNKNOWN
      @reason = ''
      details(error).each do |any|
        if any.is(Google::Rpc::ErrorInfo)
          @reason = any.unpack(Google::Rpc::ErrorInfo).reason
        elsif any.is(Google::Rpc::RetryInfo)
          @delay = any.unpack(Google::Rpc::RetryInfo).retry_delay&.to_f
        end
      end
      # `message` of gRPC has a long `debug_error_string`.
      super("#{method}: #{error.is_a?(GRPC::BadStatus) ? "#{error.code} #{error.details}" : error.message} #{@reason}".rstrip)
    end

    REPEATABLE = [GRPC::Core::StatusCodes::UNAVAILABLE, GRPC::Core::StatusCodes::RESOURCE_EXHAUSTED,
                  GRPC::Core::StatusCodes::DEADLINE_EXCEEDED].freeze

    def repeatable?
      REPEATABLE.include?(code) || (reason.empty? && code != GRPC::Core::StatusCodes::UNIMPLEMENTED)
    end

    # Neither ringq nor an outage: one item of the call may be the cause, as behind a proxy that limits bodies.
    def unexplained? = repeatable? && !REPEATABLE.include?(code)

    private def details(error)
      binary = error.is_a?(GRPC::BadStatus) && error.metadata['grpc-status-details-bin']
      binary ? Google::Rpc::Status.decode(binary).details : []
    rescue Google::Protobuf::ParseError
      []
    end
  end

  # Calls of QueueService.
  class Client
    attr_reader :timeout

    def initialize
      @timeout = Ringq.setting('CALL_TIMEOUT', '10').to_f
      token = Ringq.setting('TOKEN', '').strip # A file's newline is no metadata: the error would show the token.
      @metadata = token.empty? ? {} : { 'authorization' => "Bearer #{token}" }
      ca = Ringq.setting('CA', nil)
      credentials = ca ? GRPC::Core::ChannelCredentials.new(File.read(ca)) : :this_channel_is_insecure
      servers = Ringq.setting('SERVER', '127.0.0.1:7700').split(',').map(&:strip)
      @stub = V1::QueueService::Stub.new(target(servers), credentials, channel_args: channel_args(servers))
    end

    # One call without a repeat.
    def call(method, request, timeout = @timeout)
      @stub.public_send(method, request, deadline: GRPC::Core::TimeConsts.from_relative_time(timeout), metadata: @metadata)
    rescue StandardError => e
      raise CallFailed.new(method, e)
    end

    # The operation of a Stream: `execute` gives the messages, `cancel` ends it. No deadline.
    def stream(request) = @stub.stream(request, return_op: true, metadata: @metadata)

    private

    # gRPC takes a name, which may have several addresses, or a list of addresses.
    def target(servers)
      return "dns:///#{servers.first}" if servers.size == 1

      addresses = servers.filter_map { |server| address(server) }
      raise ArgumentError, "none of #{servers.join(', ')} has an address" if addresses.empty?

      "ipv4:#{addresses.join(',')}"
    end

    def address(server)
      host, _, port = server.rpartition(':')
      "#{Addrinfo.getaddrinfo(host, port, Socket::AF_INET, :STREAM).first.ip_address}:#{port}"
    rescue SocketError => e
      Ringq.log("#{server} is left out: #{e.message}")
      nil
    end

    def channel_args(servers)
      {
        # A copy of deploy/service-config.json: round robin over the servers, with health checks.
        'grpc.service_config' => File.read(File.join(__dir__, 'stubs', 'service-config.json')),
        'grpc.default_authority' => servers.first, # A list of addresses is no name, also not of a certificate.
        'grpc.max_receive_message_length' => 16 << 20,
        'grpc.keepalive_time_ms' => 30_000,
        'grpc.initial_reconnect_backoff_ms' => 100,
        'grpc.max_reconnect_backoff_ms' => 2_000, # gRPC adds up to 20 %; its default is two minutes.
        'grpc.min_reconnect_backoff_ms' => 5_000 # In spite of its name: the time limit of an attempt to connect.
      }
    end
  end
end
