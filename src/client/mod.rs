//! The client library: a [`Client`] holds the connection, a [`Producer`] enqueues, a [`Worker`] runs
//! a handler for each job.
//!
//! Generated stubs make any language a full client, and so does [`crate::pb`] for Rust. This library adds the work
//! that every good client repeats: batching, extending leases, retrying where that is safe, reconnecting, stopping
//! without losing or doubling a job.
//!
//! A program that needs only the client takes this package without its default features, and builds neither the
//! server nor the command line:
//!
//! ```toml
//! ringq = { path = "../ringq", default-features = false }
//! ```
//!
//! # Enqueue
//! ```no_run
//! use std::time::Duration;
//!
//! use ringq::client::{Client, Error};
//! use ringq::pb::JobSpec;
//!
//! # async fn example() -> Result<(), Error> {
//! let producer = Client::new("http://127.0.0.1:7700")?.producer();
//! let job = JobSpec::new("emails")
//!     .with_id("welcome-7")
//!     .with_text(r#"{"to":"ada@example.org"}"#)
//!     .with_delay(Duration::from_secs(60));
//! println!("{}", producer.enqueue(job).await?.id);
//! # Ok(())
//! # }
//! ```
//!
//! # Work
//! ```no_run
//! use ringq::client::{Client, Delivery, Error, Worker};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::new("http://127.0.0.1:7700")?;
//! let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
//! let summary = Worker::new(client, ["emails"]).concurrency(16).run(send, stop).await?;
//! println!("{} sent", summary.acked);
//! # Ok(())
//! # }
//!
//! async fn send(job: Delivery) -> Result<(), std::io::Error> {
//!     println!("attempt {} of {}: {:?}", job.attempt, job.id, job.text());
//!     Ok(()) // an error is a Nack: the job is retried by its retry policy
//! }
//! ```
//! Both are whole programs under `examples/`.
//!
//! # TLS and tokens
//! ```no_run
//! use ringq::client::{Client, Error, Options};
//!
//! # fn example() -> Result<(), Error> {
//! let options = Options::default()
//!     .ca_file("/etc/ringq/ca.pem") // without it, the authorities of the system
//!     .token_file("/var/run/secrets/ringq/token"); // or .token(…), .identity_files(cert, key)
//! let client = Client::with_options("https://ringq.example.org:7700", options)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Several servers
//! `Client::new("http://a:7700,http://b:7700")` uses both: see [`Client`].

mod call;
mod connection;
mod credentials;
mod error;
mod job_spec;
mod limits;
mod options;
mod producer;
mod refusals;
mod servers;
mod tls;
mod transport;
mod worker;
mod write_coalescing;

pub use connection::Client;
pub use error::Error;
#[cfg(feature = "cli")]
pub(crate) use error::tls as tls_errors;
#[cfg(feature = "cli")]
pub(crate) use job_spec::to_proto_duration;
pub use options::Options;
#[cfg(feature = "cli")]
pub(crate) use producer::OnRetry;
pub use producer::{EnqueueReply, Producer};
pub use transport::Transport;
pub use worker::{Delivery, Outcome, Summary, Worker};
