//! The values that cross the seam, a file for each group of verbs.

mod claim;
mod enqueue;
mod lease;
mod manage;
mod read;
mod replica;
mod request;
mod shard;
mod upkeep;

pub use claim::{Ask, Claim, Claimed, Claims, Leased, LostClaim, Rest, Taker, Unclaim, Undone};
pub use enqueue::{Enqueue, NewJob};
pub use lease::{Adopt, Adoptee, Extend, Lease, LeaseRef, Settle, Tied};
pub use manage::{Delete, Redrive, Redriven, Reschedule, Rescheduled};
pub use read::{Cursor, Ids, List, Listed, Page, Stats, Topic};
pub use replica::{Beat, Census, Sign};
pub use request::{Applied, Request};
pub use shard::{Condition, Content, Identity, Info, Reach, Trouble};
pub use upkeep::{Pruned, Select, Selected, Tidied};
