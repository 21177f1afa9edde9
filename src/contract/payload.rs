//! Payloads and results, which have the same form and the same limits.

use bytes::Bytes;

use crate::domain::{Payload, limit};
use crate::pb;

use super::{Checks, FieldPath};

/// Reads a payload, if there is one.
pub(crate) fn payload(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<pb::Payload>,
) -> Option<Payload> {
    bounded(checks, path, given, limit::PAYLOAD_BYTES_MAX)
}

/// Reads a checkpoint, if there is one.
pub(crate) fn checkpoint(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<pb::Payload>,
) -> Option<Payload> {
    bounded(checks, path, given, limit::CHECKPOINT_BYTES_MAX)
}

fn bounded(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: Option<pb::Payload>,
    bytes_max: usize,
) -> Option<Payload> {
    use pb::payload::Kind;
    let pb::Payload { kind, content_type } = given?;
    let (text, body) = match kind {
        Some(Kind::Text(text)) => (true, Bytes::from(text)),
        Some(Kind::Data(data)) => (false, data),
        // Without a kind it is one of no bytes: a worker always receives a kind.
        None => (false, Bytes::new()),
    };
    checks.at_most_bytes(path, body.len(), bytes_max);
    let path = path.field("content_type");
    checks.at_most_bytes(path, content_type.len(), limit::CONTENT_TYPE_BYTES_MAX);
    Some(Payload { text, body, content_type })
}

/// Converts a payload.
pub(crate) fn to_payload(payload: Payload) -> pb::Payload {
    use pb::payload::Kind;
    let Payload { text, body, content_type } = payload;
    let kind = match text {
        false => Kind::Data(body),
        // A body that a store returns as text was sent as text; if it is not valid text, it is returned as data.
        true => match String::from_utf8(body.into()) {
            Ok(text) => Kind::Text(text),
            Err(error) => Kind::Data(error.into_bytes().into()),
        },
    };
    pb::Payload { kind: Some(kind), content_type }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;
    use pb::payload::Kind;

    fn of(kind: Option<Kind>, content_type: &str) -> pb::Payload {
        pb::Payload { kind, content_type: content_type.into() }
    }

    #[test]
    fn sizes_are_bounded() {
        let (max, type_max) = (limit::PAYLOAD_BYTES_MAX, limit::CONTENT_TYPE_BYTES_MAX);
        let cases = [
            (of(Some(Kind::Data(vec![0; max].into())), ""), vec![]),
            (of(Some(Kind::Data(vec![0; max + 1].into())), ""), vec!["payload"]),
            (of(Some(Kind::Text("t".repeat(max + 1))), ""), vec!["payload"]),
            (of(None, &"c".repeat(type_max)), vec![]),
            (of(None, &"c".repeat(type_max + 1)), vec!["payload.content_type"]),
        ];
        for (given, expected) in cases {
            let found = noted(|checks| {
                payload(checks, FieldPath::ROOT.field("payload"), Some(given));
            });
            assert!(found.iter().all(|(_, reason)| *reason == "TOO_LARGE"));
            let fields: Vec<_> = found.into_iter().map(|(field, _)| field).collect();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn both_kinds_survive_their_round_trip() {
        let round_trip =
            |given| payload(&mut Checks::default(), FieldPath::ROOT, Some(given)).map(to_payload);
        for size in [0, 1, 2, 7, 1_000] {
            for kind in [Kind::Text("ä".repeat(size)), Kind::Data(vec![0xff; size].into())] {
                let given = of(Some(kind), "x/y");
                assert_eq!(round_trip(given.clone()), Some(given));
            }
        }
        let data = of(Some(Kind::Data(Bytes::new())), "x/y");
        assert_eq!(round_trip(of(None, "x/y")), Some(data), "a payload without a kind");
    }

    #[test]
    fn text_that_is_none_comes_back_as_data() {
        let body = Bytes::from_static(b"\xff");
        let broken = Payload { text: true, body: body.clone(), content_type: String::new() };
        assert_eq!(to_payload(broken).kind, Some(Kind::Data(body)));
    }
}
