#include "ringq_client.h"

#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

#include "service_config.h"
#include "status.pb.h"

namespace ringq {
namespace {

std::mt19937_64& generator() {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  return engine;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!(content << file.rdbuf())) throw std::runtime_error("cannot read " + path);
  return content.str();
}

std::string trim(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<std::string> resolve(const std::string& server) {
  const auto colon = server.rfind(':');
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  char address[NI_MAXHOST];
  const int failed = getaddrinfo(server.substr(0, colon).c_str(), nullptr, &hints, &found);
  if (failed) {
    log("RINGQ_SERVER: " + server + " is left out: " + gai_strerror(failed));
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  getnameinfo(found->ai_addr, found->ai_addrlen, address, sizeof address, nullptr, 0, NI_NUMERICHOST);
  return address + server.substr(colon);
}

// gRPC takes a name, which may have several addresses, or a list of addresses.
std::string target(const std::vector<std::string>& servers) {
  if (servers.size() == 1) return "dns:///" + servers.front();
  std::string list;
  for (const auto& server : servers)
    if (const auto address = resolve(server)) list += (list.empty() ? "" : ",") + *address;
  if (list.empty()) throw std::runtime_error("RINGQ_SERVER: no address for any name");
  return "ipv4:" + list;
}

}  // namespace

std::string setting(const char* name, const std::string& fallback) {
  const char* value = std::getenv((std::string("RINGQ_") + name).c_str());
  return value && *value ? value : fallback;
}

Seconds seconds_setting(const char* name, double fallback) {
  return Seconds(std::stod(setting(name, std::to_string(fallback))));
}

int int_setting(const char* name, int fallback) { return std::stoi(setting(name, std::to_string(fallback))); }

std::vector<std::string> topics() { return split(setting("TOPICS", "examples")); }

std::string random_hex(int digits) {
  std::string text;
  std::uniform_int_distribution<int> digit(0, 15);
  while (digits-- > 0) text += "0123456789abcdef"[digit(generator())];
  return text;
}

Seconds pause(int attempt, double longest) {
  const double limit = std::min(longest, 0.25 * std::exp2(std::min(attempt - 1, 10)));
  return Seconds(std::uniform_real_distribution<double>(limit / 10, limit)(generator()));
}

void log(const std::string& line) {
  const std::string whole = line + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, whole.data(), whole.size());
}

Seconds seconds(const google::protobuf::Duration& duration) { return Seconds(duration.seconds() + duration.nanos() / 1e9); }

google::protobuf::Duration duration(Seconds seconds) {
  google::protobuf::Duration result;
  result.set_seconds(static_cast<std::int64_t>(seconds.count()));
  result.set_nanos(static_cast<std::int32_t>((seconds.count() - static_cast<double>(result.seconds())) * 1e9));
  return result;
}

Error::Error(const grpc::Status& status) : code(status.error_code()), message(status.error_message()) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return;
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) reason = info.reason();
    if (detail.UnpackTo(&retry)) delay = seconds(retry.retry_delay());
  }
}

static bool passes_by_itself(grpc::StatusCode code) {
  return code == grpc::UNAVAILABLE || code == grpc::RESOURCE_EXHAUSTED || code == grpc::DEADLINE_EXCEEDED;
}

bool Error::repeatable() const {
  return passes_by_itself(code) || (reason.empty() && code != grpc::UNIMPLEMENTED);
}

bool Error::unexplained() const { return repeatable() && !passes_by_itself(code); }

bool Error::of_an_item() const {
  return !reason.empty() && (code == grpc::INVALID_ARGUMENT || code == grpc::PERMISSION_DENIED);
}

std::string Error::text() const {
  return "code " + std::to_string(code) + (reason.empty() ? "" : " " + reason) + ": " + message;
}

// A secret read from a file often ends with a newline.
Client::Client() : token_(trim(setting("TOKEN", ""))) {
  const auto servers = split(setting("SERVER", "127.0.0.1:7700"));
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kServiceConfig);
  // A list of addresses is no name, also not of a certificate.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, servers.front());
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);  // gRPC adds up to 20 %; its default is two minutes.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // In spite of its name: the time limit of an attempt to connect.
  auto credentials = grpc::InsecureChannelCredentials();
  if (const auto ca = setting("CA", ""); !ca.empty()) credentials = grpc::SslCredentials({read_file(ca), "", ""});
  stub_ = v1::QueueService::NewStub(grpc::CreateCustomChannel(target(servers), credentials, arguments));
}

void Client::prepare(grpc::ClientContext& context, std::optional<Seconds> timeout) const {
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
  if (!timeout) return;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(*timeout));
  context.set_wait_for_ready(true);  // A new connection may be a moment away; the deadline ends the wait.
}

}  // namespace ringq
