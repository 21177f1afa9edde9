//! Texts of failures.

use std::time::Duration;

use ringq::client::{Client, Error, Options};
use ringq::pb::{GetServerInfoRequest, JobSpec};
use tokio::net::TcpListener;
use tonic::Code;

use super::connect;
use crate::harness::{Server, for_a_while, within};

/// Returns the error of a call.
async fn failure(url: &str) -> Error {
    let client = Client::new(url).unwrap();
    let producer = client.producer().repeat_for(Duration::ZERO);
    within("the failure", producer.enqueue(JobSpec::new("t"))).await.unwrap_err()
}

/// Checks a failed connection: a retry may help, nothing was done, and the text has the reason.
#[track_caller]
fn assert_no_connection(error: &Error, why: &str) {
    assert_eq!((error.code(), error.reason()), (Code::Unavailable, ""), "{error:?}");
    assert!(error.is_unavailable() && !error.outcome_unknown(), "{error:?}");
    assert!(error.message().contains(why), "{why}: {error:?}");
}

#[tokio::test]
async fn a_closed_port() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = failure(&format!("http://{address}")).await;
    assert_no_connection(&error, "Connection refused");
}

#[tokio::test]
async fn a_name_that_is_none() {
    let error = failure("http://nowhere.invalid:7700").await;
    assert_no_connection(&error, "failed to lookup address");
}

#[tokio::test]
async fn https_where_http_is_spoken() {
    let server = Server::start().await;
    let error = failure(&format!("https://{}", server.grpc)).await;
    assert_no_connection(&error, "TLS failed: ");
}

/// A port that accepts connections and sends nothing. With `https` there is no TLS in time; with `http` the call may
/// be on its way.
#[tokio::test]
async fn a_port_that_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = failure(&format!("https://{address}")).await;
    assert_no_connection(&error, "TLS");
    assert!(error.message().contains("timeout"), "{error:?}");
}

/// A listener whose queue is full drops connections without an answer.
#[tokio::test]
async fn a_port_that_drops_what_comes() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    let connect = || tokio::net::TcpStream::connect(address);
    while let Some(Ok(stream)) = for_a_while(Duration::from_millis(200), connect()).await {
        fill.push(stream);
    }
    let error = failure(&format!("http://{address}")).await;
    assert_no_connection(&error, "timed out");
}

#[tokio::test]
async fn a_connection_that_ends_with_a_call_on_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 64];
        tokio::io::AsyncReadExt::read(&mut stream, &mut head).await.unwrap();
    });
    let error = failure(&url).await;
    server.await.unwrap();
    assert_eq!((error.code(), error.reason()), (Code::Unavailable, ""), "{error:?}");
    assert!(error.is_unavailable() && error.outcome_unknown(), "{error:?}");
}

/// The caller's own deadline, which tonic reports as CANCELLED.
#[tokio::test]
async fn a_deadline_is_one_for_each_reader() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let mut request = tonic::Request::new(GetServerInfoRequest::default());
    request.set_timeout(Duration::from_millis(50));
    let status = within("the answer", client.admin().get_server_info(request)).await.unwrap_err();
    let error = Error::from(status);
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.is_unavailable() && error.outcome_unknown(), "{error:?}");
}

#[tokio::test]
async fn mistakes_are_found_before_any_call() {
    for url in ["", "127.0.0.1:7700", "ftp://x", "http://", "http://a b", "http://x:port"] {
        let error = Client::new(url).unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("server")), "{url}");
        assert!(!error.is_unavailable() && !error.outcome_unknown(), "{url}");
    }
    let token = Options::default().token("a\nb");
    let error = Client::with_options("http://127.0.0.1:1", token).unwrap_err();
    assert_eq!(error.field(), Some("token"));
}

#[tokio::test]
async fn an_answer_of_the_server_keeps_its_details() {
    let server = Server::start().await;
    let request =
        ringq::pb::GetRequest { topic: "t".into(), id: "none".into(), ..Default::default() };
    let status = connect(&server).queue().get(request).await.unwrap_err();
    let error = Error::from(status);
    assert!(error.is_not_found() && !error.is_unavailable() && !error.outcome_unknown());
    assert_eq!((error.reason(), error.metadata("id")), ("JOB_NOT_FOUND", Some("none")));
}
