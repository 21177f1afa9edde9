//! Parses members of orders and of the line: due time, arrival, id.

use crate::domain::{JobId, Time};
use crate::store::Result;

use super::reply::unexpected;

/// Bytes of the due time and of the arrival in front of an id in a member of an order.
const DUE_BYTES: usize = 7;
const ARRIVAL_BYTES: usize = 6;
/// Id in a member of an order.
pub(super) fn id_of(member: &[u8]) -> Result<JobId> {
    let id = member.get(DUE_BYTES + ARRIVAL_BYTES..).and_then(|id| std::str::from_utf8(id).ok());
    id.map(JobId::stored).ok_or_else(|| unexpected("an id"))
}

/// Arrival in a member of an order, or in front of a record.
pub(super) fn arrival_of(member: &[u8]) -> i64 {
    read_number(member, DUE_BYTES, ARRIVAL_BYTES)
}

/// Due time in a member of an order, or in front of a record.
pub(super) fn due_of(member: &[u8]) -> Time {
    Time(read_number(member, 0, DUE_BYTES))
}

fn read_number(member: &[u8], from: usize, length: usize) -> i64 {
    let bytes = member.iter().skip(from).take(length);
    bytes.fold(0, |number, &byte| number << 8 | i64::from(byte))
}
