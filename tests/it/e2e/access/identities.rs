//! Identities of a test: their file, their tokens, and calls with these.

use std::fs;
use std::path::PathBuf;

use bytes::{Buf as _, BufMut as _, Bytes};
use ringq::auth::token::TokenHash;
use ringq::pb;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::harness::{Server, Setup};

/// Directory with the identities of a server.
pub(crate) struct IdentityDir(tempfile::TempDir);

/// Calls of one identity.
#[derive(Clone)]
pub(crate) struct Caller {
    grpc: tonic::client::Grpc<Channel>,
    /// Value of the header; `None`: the call has none.
    authorization: Option<String>,
}

/// Codec that leaves messages as they are.
#[derive(Clone, Copy, Default)]
struct Plain;

// === impl IdentityDir ===

impl IdentityDir {
    /// Creates a directory with one file.
    pub(crate) fn new(text: &str) -> IdentityDir {
        let dir = IdentityDir(tempfile::Builder::new().prefix("ringq-ids-").tempdir().unwrap());
        dir.write("identities.toml", text);
        dir
    }

    /// Writes a file, in one step for its readers.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.0.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.0.path().join(name)).unwrap();
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Builds a server with these identities.
    pub(crate) fn setup(&self) -> Setup {
        Setup::new().config(&format!("identities = {:?}", self.path()))
    }
}

/// Returns the table of an identity whose token is `token-NAME`.
pub(crate) fn table(name: &str, lines: &str) -> String {
    let hash = TokenHash::of(&token(name));
    format!("[[identity]]\nname = '{name}'\ntokens = ['{hash}']\n{lines}\n")
}

/// Returns the token of an identity.
pub(crate) fn token(name: &str) -> String {
    format!("token-{name}")
}

// === impl Caller ===

impl Caller {
    /// Connects as this identity.
    pub(crate) async fn connect(server: &Server, name: &str) -> Caller {
        Caller::with(server, Some(&format!("Bearer {}", token(name)))).await
    }

    /// Connects with this header.
    pub(crate) async fn with(server: &Server, authorization: Option<&str>) -> Caller {
        let grpc = tonic::client::Grpc::new(server.connect().await.channel);
        Caller { grpc, authorization: authorization.map(str::to_owned) }
    }

    /// Returns the same connection with the token of another identity.
    pub(crate) fn as_identity(&self, name: &str) -> Caller {
        Caller { authorization: Some(format!("Bearer {}", token(name))), ..self.clone() }
    }

    /// Calls an RPC, and returns its first message.
    pub(crate) async fn raw(&self, path: &str, message: Bytes) -> Result<Bytes, Status> {
        let mut answer = self.open(path, message).await?;
        answer.message().await?.ok_or_else(|| Status::unknown("no message"))
    }

    /// Calls an RPC, and returns its messages.
    pub(crate) async fn open(
        &self,
        path: &str,
        message: Bytes,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.unwrap();
        let mut request = Request::new(once(message));
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        }
        let path = PathAndQuery::try_from(format!("/{path}")).unwrap();
        Ok(grpc.streaming(request, path, Plain).await?.into_inner())
    }

    /// Calls an RPC of `ringq.v1`, as `QueueService/Get`.
    pub(crate) async fn call<A: prost::Message + Default>(
        &self,
        rpc: &str,
        message: &impl prost::Message,
    ) -> Result<A, Status> {
        let answer = self.raw(&format!("ringq.v1.{rpc}"), message.encode_to_vec().into()).await?;
        Ok(A::decode(answer).unwrap())
    }

    /// Enqueues a job, and expects success.
    pub(crate) async fn enqueue(&self, job: pb::JobSpec) -> pb::EnqueueResponse {
        let request = pb::EnqueueRequest { job: Some(job), ..Default::default() };
        self.call("QueueService/Enqueue", &request).await.unwrap()
    }
}

fn once(message: Bytes) -> futures::stream::Iter<std::iter::Once<Bytes>> {
    futures::stream::iter(std::iter::once(message))
}

// === impl Plain ===

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Plain;
    type Decoder = Plain;

    fn encoder(&mut self) -> Plain {
        Plain
    }

    fn decoder(&mut self) -> Plain {
        Plain
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
