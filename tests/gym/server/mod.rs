//! Scripted server: two ports, and the handling of their calls.

mod grpc;
mod json;
mod port;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use prost::Message as _;
use ringq::pb::{
    AckResponse, BatchEnqueueResponse, Delivery, EnqueueResult, ItemError, PullResponse,
    StreamRequest,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::answers::{Answer, Rule, outcome};
use super::call::{Call, Method, duration};
use super::jobs::Job;
use super::record::Record;
pub(crate) use port::{Port, PortMode};

/// Maximum number of messages of a stream that the worker has not read yet.
const UNREAD_MAX: usize = 4_096;
/// Maximum number of streams that the script has not taken yet.
const STREAMS_MAX: usize = 1_024;

/// Message of a stream, or its end.
pub(crate) enum StreamItem {
    Message(Bytes),
    Fail(Status),
    End,
}

/// Stream that the worker has opened.
pub(crate) struct OpenStream {
    pub(crate) id: String,
    pub(crate) call: Call,
    pub(crate) messages: mpsc::Sender<StreamItem>,
    /// Closes its connection.
    pub(crate) connection: CancellationToken,
}

/// State of a scripted server.
pub(crate) struct Server {
    pub(crate) record: Arc<Record>,
    rules: Mutex<HashMap<Method, Rule>>,
    /// Decides which Stream calls are refused.
    refusal: Mutex<Option<RefusalRule>>,
    streams: mpsc::Sender<OpenStream>,
    streams_opened: AtomicUsize,
    /// Jobs that the next Pull gets, each with its length of lease if it has its own.
    pub(crate) pulls: Mutex<VecDeque<Job>>,
    pulls_changed: Notify,
    deliveries: AtomicUsize,
}

type RefusalRule = Box<dyn FnMut(usize) -> Option<Status> + Send>;

// === impl Server ===

impl Server {
    pub(crate) fn new(record: Arc<Record>) -> (Arc<Server>, mpsc::Receiver<OpenStream>) {
        let (streams, opened) = mpsc::channel(STREAMS_MAX);
        let server = Server {
            record,
            rules: Mutex::default(),
            refusal: Mutex::default(),
            streams,
            streams_opened: AtomicUsize::new(0),
            pulls: Mutex::default(),
            pulls_changed: Notify::new(),
            deliveries: AtomicUsize::new(0),
        };
        (Arc::new(server), opened)
    }

    /// Opens the gRPC port and the JSON port.
    pub(crate) async fn listen(self: &Arc<Self>) -> std::io::Result<(Port, Port)> {
        let grpc = Port::open(Arc::clone(self), grpc::connection).await?;
        Ok((grpc, Port::open(Arc::clone(self), json::connection).await?))
    }

    pub(crate) fn set_rule(&self, method: Method, rule: Rule) {
        self.rules.lock().unwrap().insert(method, rule);
    }

    pub(crate) fn set_refusal(&self, refusal: RefusalRule) {
        *self.refusal.lock().unwrap() = Some(refusal);
    }

    /// Adds jobs for the next Pull calls.
    pub(crate) fn offer(&self, jobs: Vec<Job>) {
        self.pulls.lock().unwrap().extend(jobs);
        self.pulls_changed.notify_waiters();
    }

    /// Turns a job into a delivery, and begins its lease.
    pub(crate) fn deliver(&self, job: &Job, opening: &StreamRequest) -> Delivery {
        let number = self.deliveries.fetch_add(1, Ordering::Relaxed) + 1;
        let lease = job.lease.or_else(|| duration(opening.lease_duration)).unwrap_or_default();
        let delivery = job.delivery(number, lease);
        self.record.write(|log, now| log.deliver(now, &delivery, lease));
        delivery
    }

    /// Records a call as it arrives.
    fn arrive(
        &self,
        method: Method,
        message: Bytes,
        authorization: Option<String>,
    ) -> Result<Call, Status> {
        let mut call = Call::read(method, message)?;
        call.authorization = authorization;
        self.record.write(|log, now| {
            call.at = now;
            call.number = log.calls(method).len() + 1;
            log.calls.push(call.clone());
        });
        self.record.note(call.text());
        Ok(call)
    }

    /// Opens a stream.
    fn open(
        &self,
        message: Bytes,
        authorization: Option<String>,
        connection: CancellationToken,
    ) -> Result<mpsc::Receiver<StreamItem>, Status> {
        let call = self.arrive(Method::Stream, message, authorization)?;
        let refusal = self.refusal.lock().unwrap().as_mut().and_then(|rule| rule(call.number));
        if let Some(status) = refusal {
            self.record.note(format!("  refused: {:?} {}", status.code(), status.message()));
            return Err(status);
        }
        let id = format!("stream-{}", self.streams_opened.fetch_add(1, Ordering::Relaxed) + 1);
        let (messages, sent) = mpsc::channel(UNREAD_MAX);
        let (record, ended, name) = (Arc::clone(&self.record), messages.clone(), id.clone());
        tokio::spawn(async move {
            ended.closed().await;
            record.write(|log, now| log.cancelled.push((name.clone(), now)));
            record.note(format!("{name} is over"));
        });
        self.record.note(format!("  opened as {id}"));
        self.streams
            .try_send(OpenStream { id, call, messages, connection })
            .map_err(|_| Status::resource_exhausted("the scenario is over"))?;
        Ok(sent)
    }

    /// Handles a unary call.
    async fn call(
        &self,
        method: Method,
        message: Bytes,
        authorization: Option<String>,
    ) -> Result<Bytes, Status> {
        let call = self.arrive(method, message, authorization)?;
        let answer = match self.rules.lock().unwrap().get_mut(&method) {
            Some(rule) => rule(&call),
            None => Answer::Normal,
        };
        let (failing, results, lost) = match answer {
            Answer::Normal => (Vec::new(), Vec::new(), None),
            Answer::Items(items) => (items, Vec::new(), None),
            Answer::Results(results) => (Vec::new(), results, None),
            Answer::Applied(status) => (Vec::new(), Vec::new(), Some(status)),
            Answer::After(event) => {
                self.record.note(format!("  {method:?} #{}: held", call.number));
                event.cancelled().await;
                self.record.note(format!("  {method:?} #{}: answered now", call.number));
                (Vec::new(), Vec::new(), None)
            }
            Answer::Fail(status) => return Err(self.failed(&call, status)),
            Answer::Never => {
                self.record.note(format!("  {method:?} #{}: not answered", call.number));
                std::future::pending().await
            }
        };
        let applied = match method {
            Method::Pull => self.pull(&call).await,
            Method::BatchEnqueue => self.enqueue(&call, results),
            _ => self.settle(&call, &failing),
        };
        lost.map_or(Ok(applied), |status| Err(self.failed(&call, status)))
    }

    fn failed(&self, call: &Call, status: Status) -> Status {
        let (code, text) = (status.code(), status.message());
        self.record.note(format!("  {:?} #{} fails: {code:?} {text}", call.method, call.number));
        status
    }

    fn settle(&self, call: &Call, failing: &[(&str, ringq::pb::SettleError)]) -> Bytes {
        let fail = |id: &str| failing.iter().find(|(name, _)| *name == id).map(|(_, error)| *error);
        let failures = self.record.write(|log, now| log.apply(now, call, fail));
        if !failures.is_empty() {
            let error = |it: &ringq::pb::SettleFailure| {
                format!("{} {}", it.message.replace(": scripted", ""), it.error().as_str_name())
            };
            let failed = failures.iter().map(error).collect::<Vec<_>>().join(", ");
            self.record.note(format!("  {:?} #{}: {failed}", call.method, call.number));
        }
        // The answers of Nack and Extend have the same form.
        AckResponse { failures }.encode_to_vec().into()
    }

    fn enqueue(&self, call: &Call, failing: Vec<(usize, ItemError)>) -> Bytes {
        let batch = call.batch.clone().unwrap_or_default();
        let ids = self.record.write(|log, _| log.enqueue(&batch));
        let mut results: Vec<_> = ids
            .into_iter()
            .map(|(id, is_new)| EnqueueResult {
                id,
                outcome: outcome(is_new).into(),
                state: ringq::pb::JobState::Ready.into(),
                ..Default::default()
            })
            .collect();
        let failed_count = i32::try_from(failing.len()).unwrap_or(i32::MAX);
        for (index, error) in failing {
            self.record.note(format!("  job {index}: {}", error.reason));
            results[index].outcome = 0;
            results[index].state = 0;
            results[index].error = Some(error);
        }
        BatchEnqueueResponse { results, failed_count }.encode_to_vec().into()
    }

    /// Waits for jobs and hands them to a Pull.
    async fn pull(&self, call: &Call) -> Bytes {
        let opening = call.opening.clone().unwrap_or_default();
        let most = usize::try_from(opening.max_in_flight).unwrap_or(1);
        let jobs = async {
            loop {
                let mut changed = std::pin::pin!(self.pulls_changed.notified());
                changed.as_mut().enable();
                let jobs: Vec<_> = {
                    let mut pulls = self.pulls.lock().unwrap();
                    let count = most.min(pulls.len());
                    pulls.drain(..count).collect()
                };
                if !jobs.is_empty() {
                    return jobs;
                }
                changed.await;
            }
        };
        let jobs = timeout(call.wait, jobs).await.unwrap_or_default();
        let deliveries: Vec<_> = jobs.iter().map(|job| self.deliver(job, &opening)).collect();
        if !deliveries.is_empty() {
            let ids: Vec<_> = deliveries.iter().map(|it| it.id.as_str()).collect();
            self.record.note(format!("  Pull #{}: deliver [{}]", call.number, ids.join(", ")));
        }
        PullResponse { deliveries }.encode_to_vec().into()
    }
}
