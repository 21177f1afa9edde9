//! Canonical proto3 JSON of messages that are known only by their descriptor: those of the contract, and errors with
//! their details. Fields without presence are left out at their default, as `grpcurl` prints them.

use std::sync::LazyLock;

use prost_reflect::{
    DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use serde::de::Error as _;

use crate::pb;

/// Descriptors, or the error of their first use.
type Descriptors = LazyLock<Result<DescriptorPool, DescriptorError>>;

/// Full name of the message that every error is.
const STATUS: &str = "google.rpc.Status";

/// Returns the descriptors of the contract.
///
/// # Errors
/// [`DescriptorError`], if the compiled contract is broken.
pub(crate) fn contract() -> Result<&'static DescriptorPool, &'static DescriptorError> {
    static CONTRACT: Descriptors =
        LazyLock::new(|| DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET));
    CONTRACT.as_ref()
}

/// Returns the descriptor of a message of the contract.
///
/// # Errors
/// The compiled contract is broken, or has no such message.
pub(crate) fn message(name: &str) -> Result<MessageDescriptor, String> {
    let contract = contract().map_err(|error| format!("the contract cannot be read: {error}"))?;
    contract.get_message_by_name(name).ok_or_else(|| format!("the contract has no {name}"))
}

/// Returns the descriptor of `google.rpc.Status`, whose pool has the details of errors.
pub(crate) fn status() -> Option<MessageDescriptor> {
    static ERRORS: Descriptors =
        LazyLock::new(|| DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET));
    ERRORS.as_ref().ok()?.get_message_by_name(STATUS)
}

/// Reads a message from JSON text. Names of fields may be those of the proto file, too; unknown fields are refused.
///
/// # Errors
/// The first mistake, with its line and column.
pub(crate) fn parse(
    descriptor: MessageDescriptor,
    text: &[u8],
) -> Result<DynamicMessage, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(descriptor, &mut reader)?;
    reader.end()?;
    Ok(message)
}

/// Returns an encoded message as JSON text on one line.
///
/// # Errors
/// The bytes are not a message of that descriptor.
pub(crate) fn to_text(
    descriptor: MessageDescriptor,
    encoded: &[u8],
) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::with_capacity(2 * encoded.len());
    let mut writer = serde_json::Serializer::new(&mut text);
    dynamic(descriptor, encoded)?.serialize_with_options(&mut writer, &SerializeOptions::new())?;
    Ok(text)
}

/// Returns an encoded message as indented JSON text.
///
/// # Errors
/// The bytes are not a message of that descriptor.
pub(crate) fn to_pretty_text(
    descriptor: MessageDescriptor,
    encoded: &[u8],
) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&dynamic(descriptor, encoded)?)
}

fn dynamic(
    descriptor: MessageDescriptor,
    encoded: &[u8],
) -> Result<DynamicMessage, serde_json::Error> {
    DynamicMessage::decode(descriptor, encoded).map_err(serde_json::Error::custom)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prost::Message as _;
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn descriptor(name: &str) -> MessageDescriptor {
        message(name).unwrap()
    }

    /// Reads an EnqueueRequest and writes it again.
    fn again(text: &str) -> Result<String, String> {
        let message = parse(descriptor("ringq.v1.EnqueueRequest"), text.as_bytes());
        let encoded = message.map_err(|error| error.to_string())?.encode_to_vec();
        let text = to_text(descriptor("ringq.v1.EnqueueRequest"), &encoded).unwrap();
        Ok(String::from_utf8(text).unwrap())
    }

    #[test]
    fn every_canonical_form_is_read_and_one_is_written() {
        let cases = [
            ("{}", "{}"),
            (r#"{"job":{"topic":"a","id":null}}"#, r#"{"job":{"topic":"a"}}"#),
            (r#"{"onConflict":"CONFLICT_POLICY_REPLACE"}"#, "="),
            (r#"{"on_conflict":4}"#, r#"{"onConflict":"CONFLICT_POLICY_REJECT"}"#),
            (r#"{"job":{"payload":{"data":"_-8"}}}"#, r#"{"job":{"payload":{"data":"/+8="}}}"#),
            (r#"{"job":{"payload":{"data":"/+8="}}}"#, "="),
            (r#"{"job":{"delay":"1.5s"}}"#, r#"{"job":{"delay":"1.500s"}}"#),
            (
                r#"{"job":{"dueTime":"2030-01-02T03:04:05+01:00"}}"#,
                r#"{"job":{"dueTime":"2030-01-02T02:04:05Z"}}"#,
            ),
            (r#"{"job":{"priority":"7"}}"#, r#"{"job":{"priority":7}}"#),
            (r#"{"job":{"headers":{"a":"b"}}}"#, "="),
            (r#"{"job":{"topic":"a"},"job":{"topic":"b"}}"#, r#"{"job":{"topic":"b"}}"#),
        ];
        for (given, wanted) in cases {
            let wanted = if wanted == "=" { given } else { wanted };
            match again(given) {
                Ok(text) => assert_eq!(text, wanted, "{given}"),
                Err(error) => assert_eq!(wanted, "", "{given}: {error}"),
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (given, wanted) in [
            (r#"{"jop":{}}"#, "unrecognized field name 'jop' at line 1 column 6"),
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("{} {}", "trailing characters at line 1 column 4"),
            ("[]", "invalid type: sequence, expected a map at line 1 column 0"),
            (r#"{"onConflict":"NO"}"#, "unrecognized enum value 'NO' at line 1 column 18"),
            (r#"{"job":{"delay":"soon"}}"#, "failed to parse duration at line 1 column 22"),
        ] {
            let error = again(given).unwrap_err();
            assert_eq!(error, wanted, "{given}");
        }
    }

    #[test]
    fn nesting_ends_before_the_stack_does() {
        for open in ["[", "{\"job\":", "{\"x\":["] {
            assert!(again(&open.repeat(1 << 20)).is_err());
        }
    }

    #[test]
    fn errors_show_their_details() {
        let metadata = HashMap::from([("limit".to_owned(), "7".to_owned())]);
        let mut details = ErrorDetails::with_error_info("TOO_LARGE", "ringq.dev", metadata);
        details.set_retry_info(Some(std::time::Duration::from_millis(1_500)));
        let error = Status::with_error_details(Code::InvalidArgument, "no", details);
        let text = to_text(status().unwrap(), error.details()).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let wanted = serde_json::json!({"code": 3, "message": "no", "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.500s"},
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TOO_LARGE", "domain": "ringq.dev",
             "metadata": {"limit": "7"}},
        ]});
        assert_eq!(text, wanted);
    }
}
