//! Owns: any API call with a single answer, with request and answer in JSON.
//!
//! *Invariant:* a request that changes something carries a request ID, assigned here, and is repeated under it until
//! it is answered, so it takes effect once.
//! Absent: what a call means. Names are those of the API; bytes are base64.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage, SerializeOptions, Value,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rollout_gateway::{Sessions, until_answered};
use rollout_proto::{
    BytesCodec, CallOptions, Client, ClientError, HasHeader, MESSAGE_BYTES_MAX, v1,
};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Response, Status};

/// Time for an attempt beyond the time for which the leader holds the request.
const ATTEMPT: Duration = Duration::from_secs(5);

static CONTRACT: LazyLock<Result<DescriptorPool, String>> =
    LazyLock::new(|| DescriptorPool::decode(v1::DESCRIPTORS).map_err(|error| error.to_string()));

/// A call, ready to be sent.
pub(crate) struct Call {
    path: PathAndQuery,
    request: DynamicMessage,
    answer: MessageDescriptor,
}

impl Call {
    /// Parses a method (`Barrier/Arrive`) and its request in JSON.
    pub(crate) fn parse(method: &str, request: &str) -> PyResult<Self> {
        let wrong = |what: String| PyValueError::new_err(format!("{method}: {what}"));
        let contract = CONTRACT.as_ref().map_err(|error| wrong(error.clone()))?;
        let found = method.split_once('/').and_then(|(service, name)| {
            let service = contract.get_service_by_name(&format!("rollout.v1.{service}"))?;
            service.methods().find(|each| each.name() == name)
        });
        let found = found
            .filter(|each| !each.is_client_streaming() && !each.is_server_streaming())
            .ok_or_else(|| wrong("the API has no such call".to_owned()))?;
        let path = PathAndQuery::try_from(format!("/rollout.v1.{method}"));
        let mut text = serde_json::Deserializer::from_str(request);
        let options = DeserializeOptions::new();
        let request = DynamicMessage::deserialize_with_options(found.input(), &mut text, &options)
            .and_then(|request| text.end().map(|()| request))
            .map_err(|error| wrong(error.to_string()))?;
        let path = path.map_err(|error| wrong(error.to_string()))?;
        Ok(Self { path, request, answer: found.output() })
    }

    /// Sends it until the cluster answers or refuses. The caller sets a limit.
    pub(crate) async fn send(
        self,
        client: &Client,
        sessions: &Sessions,
        hold: Duration,
    ) -> Result<Bytes, ClientError> {
        let within = hold + ATTEMPT;
        let answer = match id_field(&self.request.descriptor()) {
            Some((field, of)) => {
                let options = CallOptions::default().attempt_timeout(within);
                let changed = sessions.change_until_answered(|id| {
                    let mut request = self.request.clone();
                    request.set_field(&field, id_value(of.clone(), id));
                    self.ask(client, options, Bytes::from(request.encode_to_vec()))
                });
                changed.await
            }
            None => {
                let options = CallOptions::read().attempt_timeout(within);
                let bytes = Bytes::from(self.request.encode_to_vec());
                until_answered(|| self.ask(client, options, bytes.clone())).await
            }
        };
        Ok(answer?.bytes)
    }

    /// Sends these bytes once, with the client's own retries.
    async fn ask(
        &self,
        client: &Client,
        options: CallOptions,
        bytes: Bytes,
    ) -> Result<RawAnswer, ClientError> {
        let answer = client.with_leader_opts("call", options, |channel| {
            let (path, bytes) = (self.path.clone(), bytes.clone());
            async move {
                let mut grpc = tonic::client::Grpc::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX);
                let ready = grpc.ready().await;
                ready.map_err(|error| Status::from_error(error.into()))?;
                let answer = grpc.unary(Request::new(bytes), path, BytesCodec).await?;
                RawAnswer::read(answer)
            }
        });
        answer.await
    }

    /// An answer's bytes as JSON, without the header about the cluster.
    pub(crate) fn json_of(answer: &MessageDescriptor, bytes: Bytes) -> PyResult<String> {
        let wrong = |what: String| PyValueError::new_err(format!("the answer: {what}"));
        let mut message = DynamicMessage::decode(answer.clone(), bytes)
            .map_err(|error| wrong(error.to_string()))?;
        message.clear_field_by_name("header");
        let mut json = serde_json::Serializer::new(Vec::new());
        let options = SerializeOptions::new()
            .use_proto_field_name(true)
            .stringify_64_bit_integers(false)
            .skip_default_fields(false);
        message
            .serialize_with_options(&mut json, &options)
            .map_err(|error| wrong(error.to_string()))?;
        String::from_utf8(json.into_inner()).map_err(|error| wrong(error.to_string()))
    }

    pub(crate) fn answer(&self) -> MessageDescriptor {
        self.answer.clone()
    }
}

/// The field of a request that holds its request ID, if it changes something.
fn id_field(request: &MessageDescriptor) -> Option<(FieldDescriptor, MessageDescriptor)> {
    let field = request.get_field_by_name("request")?;
    match field.kind() {
        Kind::Message(of) if of.name() == "RequestId" => Some((field, of)),
        _ => None,
    }
}

fn id_value(of: MessageDescriptor, id: v1::RequestId) -> Value {
    let mut message = DynamicMessage::new(of);
    for (name, value) in [("session", id.session), ("seq", id.seq), ("ack_upto", id.ack_upto)] {
        message.set_field_by_name(name, Value::U64(value));
    }
    Value::Message(message)
}

/// An answer's bytes, and its header about the cluster.
struct RawAnswer {
    header: Option<v1::ClusterHeader>,
    bytes: Bytes,
}

impl RawAnswer {
    fn read(answer: Response<Bytes>) -> Result<Response<Self>, Status> {
        let (metadata, bytes, extensions) = answer.into_parts();
        let headed = Headed::decode(bytes.clone());
        let header = headed.map_err(|error| Status::internal(error.to_string()))?.header;
        Ok(Response::from_parts(metadata, Self { header, bytes }, extensions))
    }
}

impl HasHeader for RawAnswer {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        self.header.as_ref()
    }
}

/// The part that all answers have.
#[derive(Clone, PartialEq, Message)]
struct Headed {
    #[prost(message, optional, tag = "1")]
    header: Option<v1::ClusterHeader>,
}
