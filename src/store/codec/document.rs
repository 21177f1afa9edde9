//! Stored form of documents: one message for all, which has that of the kind in it.

use crate::domain::{Document, DocumentContent, DocumentName, FileRecord, Time};

use super::topic_policy::{decode_topic_policy, encode_topic_policy};
use super::{Message as _, StoredDecodeError, decode, stored};

/// Encodes a document, without its name and version.
pub fn encode_document(document: &Document) -> Vec<u8> {
    let content = document.content.as_ref().map(encode_document_content);
    stored::Document { update_us: document.update_time.0, content }.encode_to_vec()
}

/// Encodes the content of a document.
pub fn encode_document_content(content: &DocumentContent) -> Vec<u8> {
    match content {
        DocumentContent::TopicPolicy(policy) => encode_topic_policy(policy),
        DocumentContent::TopicFile(record) => {
            let &FileRecord { revision, digest, former } = record;
            stored::TopicFile { revision, digest, former }.encode_to_vec()
        }
    }
}

/// Decodes the document of this name.
pub fn decode_document(
    name: DocumentName,
    version: u64,
    blob: &[u8],
) -> Result<Document, StoredDecodeError> {
    let stored::Document { update_us, content } = decode("document", blob)?;
    let content = content.map(|content| decode_content(&name, &content)).transpose()?;
    Ok(Document { name, version, update_time: Time(update_us), content })
}

fn decode_content(name: &DocumentName, blob: &[u8]) -> Result<DocumentContent, StoredDecodeError> {
    Ok(match name {
        DocumentName::TopicPolicy(name) => decode_topic_policy(name.clone(), blob)?.into(),
        DocumentName::TopicFile => {
            let stored::TopicFile { revision, digest, former } = decode("topic file", blob)?;
            DocumentContent::TopicFile(FileRecord { revision, digest, former })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{TopicPattern, TopicPolicy};

    #[test]
    fn a_document_comes_back_as_it_was_stored() {
        let record = FileRecord { revision: 12, digest: u64::MAX, former: Some(11) };
        let pattern = TopicPattern::parse("a.*").unwrap();
        let policy = TopicPolicy::new(pattern.clone(), Time(7)).into();
        for (name, content) in [
            (DocumentName::TopicPolicy(pattern), policy),
            (DocumentName::TopicFile, DocumentContent::TopicFile(record)),
            (
                DocumentName::TopicFile,
                DocumentContent::TopicFile(FileRecord { former: None, ..record }),
            ),
        ] {
            for content in [Some(content), None] {
                let (name, update_time) = (name.clone(), Time(8));
                let document = Document { name: name.clone(), version: 3, update_time, content };
                let blob = encode_document(&document);
                assert_eq!(decode_document(name.clone(), 3, &blob).unwrap(), document);
                assert!(decode_document(name, 3, &[0xff]).is_err());
            }
        }
    }
}
