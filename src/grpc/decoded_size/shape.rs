//! Shapes of request messages: which of their fields are lists or messages. Read from the descriptors of the contract.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use crate::canonical_json;
use crate::pb;

/// Size in bytes of an entry of a map: a slot of the table with two short texts, of which a part is free.
const MAP_ENTRY_BYTES: usize = 128;
/// Size in bytes of a text in a list, without its characters.
const TEXT_BYTES: usize = size_of::<String>();
/// Size in bytes of an entry whose message is not in [`ENTRIES`]: none in this contract.
pub(super) const UNKNOWN_ENTRY_BYTES: usize = 1 << 10;

/// Size in bytes of the messages of which requests have lists.
const ENTRIES: [(&str, usize); 5] = [
    ("ringq.v1.JobSpec", size_of::<pb::JobSpec>()),
    ("ringq.v1.AckItem", size_of::<pb::AckItem>()),
    ("ringq.v1.NackItem", size_of::<pb::NackItem>()),
    ("ringq.v1.ExtendItem", size_of::<pb::ExtendItem>()),
    ("google.protobuf.Duration", size_of::<prost_types::Duration>()),
];

/// Shapes of all messages within requests.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    all: Vec<MessageShape>,
    by_rpc: HashMap<String, usize>,
    by_message: HashMap<String, usize>,
}

/// Fields of a message that matter here, by number.
#[derive(Debug, Default)]
pub(super) struct MessageShape(Vec<(u32, FieldShape)>);

/// Field that is a list, a map or a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldShape {
    /// Size in bytes that one occurrence adds to a list or map.
    pub(super) entry_bytes: usize,
    /// Size in bytes that each byte of a list of numbers adds.
    pub(super) packed_bytes: usize,
    /// Shape of the message that it is.
    pub(super) message: Option<usize>,
}

// === impl Shapes ===

impl Shapes {
    /// Returns the shapes of the requests of this server.
    pub(super) fn of_requests() -> &'static Shapes {
        static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
            let scaler = DescriptorPool::decode(crate::keda::FILE_DESCRIPTOR_SET);
            let mut shapes = Shapes::default();
            // Both sets are compiled into this program; without them no service starts.
            canonical_json::contract().into_iter().for_each(|pool| shapes.add(pool));
            scaler.iter().for_each(|pool| shapes.add(pool));
            shapes
        });
        &SHAPES
    }

    fn add(&mut self, pool: &DescriptorPool) {
        for service in pool.services() {
            for rpc in service.methods() {
                let root = self.message(&rpc.input());
                self.by_rpc.insert(format!("{}/{}", service.full_name(), rpc.name()), root);
            }
        }
    }

    /// Returns the shape of a message, which is added with all within it if it is not known.
    fn message(&mut self, message: &MessageDescriptor) -> usize {
        if let Some(index) = self.by_message.get(message.full_name()) {
            return *index;
        }
        let index = self.all.len();
        self.by_message.insert(message.full_name().to_owned(), index);
        self.all.push(MessageShape::default());
        for field in message.fields() {
            let inner = match field.kind() {
                Kind::Message(inner) => Some(self.message(&inner)),
                _ => None,
            };
            if field.is_list() || field.is_map() || inner.is_some() {
                let shape = FieldShape::of(&field, inner);
                self.all[index].0.push((field.number(), shape));
            }
        }
        index
    }

    /// Returns the shape of the requests of an RPC.
    pub(super) fn of_rpc(&self, path: &str) -> Option<usize> {
        self.by_rpc.get(path).copied()
    }

    /// Returns the shape of a message by its full name.
    pub(super) fn of_message(&self, name: &str) -> Option<usize> {
        self.by_message.get(name).copied()
    }

    /// Returns a shape by its index.
    pub(super) fn get(&self, index: usize) -> &MessageShape {
        &self.all[index]
    }
}

// === impl MessageShape ===

impl MessageShape {
    /// Returns the field of a number, if it matters here.
    pub(super) fn field(&self, number: u32) -> Option<FieldShape> {
        self.0.iter().find(|(known, _)| *known == number).map(|(_, field)| *field)
    }
}

// === impl FieldShape ===

impl FieldShape {
    fn of(field: &FieldDescriptor, message: Option<usize>) -> FieldShape {
        let (mut entry_bytes, mut packed_bytes) = (0, 0);
        if field.is_map() {
            entry_bytes = MAP_ENTRY_BYTES;
        } else if field.is_list() {
            match field.kind() {
                Kind::Message(entry) => entry_bytes = message_bytes(entry.full_name()),
                Kind::String | Kind::Bytes => entry_bytes = TEXT_BYTES,
                _ => packed_bytes = size_of::<u64>(),
            }
        }
        FieldShape { entry_bytes, packed_bytes, message }
    }
}

/// Returns the size in bytes of an entry that is a message.
pub(super) fn message_bytes(name: &str) -> usize {
    let entry = ENTRIES.iter().find(|(known, _)| *known == name);
    entry.map_or(UNKNOWN_ENTRY_BYTES, |(_, bytes)| *bytes)
}
