//! Documents: stored by version, whatever their kind.

use bytes::Bytes;
use ringq::domain::{DocumentName, PolicyEffect};
use ringq::store::{
    DocumentHorizon, DocumentRemoval, DocumentWrite, DocumentWriteResult, StoredDocument,
};

use super::fixture::Fixture;
use super::values::policy_write;

fn write(name: &str, expected: u64, version: u64, effect: PolicyEffect) -> DocumentWrite {
    // Any bytes, also such as separate fields.
    let body = Bytes::from(format!("{name} {version}\0\u{ff}\n"));
    DocumentWrite { body, ..policy_write(name, expected, version, effect) }
}

async fn store(q: &Fixture, document: DocumentWrite) -> DocumentWriteResult {
    let results = q.store.write_documents(vec![document], None).await.unwrap();
    let [result] = results[..] else { panic!("{results:?}") };
    result
}

async fn stored(q: &Fixture) -> Vec<StoredDocument> {
    q.store.documents(0, 1_000).await.unwrap().documents
}

/// Returns the names of all documents, read in pages of five.
async fn names(q: &Fixture) -> Vec<String> {
    let (mut after, mut names) = (0, Vec::new());
    loop {
        let page = q.store.documents(after, 5).await.unwrap();
        assert!(page.documents.len() <= 5 && page.read_to <= page.last_sequence);
        names.extend(page.documents.iter().map(|document| document.name.to_string()));
        if page.read_to == page.last_sequence {
            return names;
        }
        assert!(page.read_to > after);
        after = page.read_to;
    }
}

pub(crate) async fn a_document_replaces_the_version_that_its_caller_knows(q: Fixture) {
    let pause = PolicyEffect::Pause { until: None };
    let deliver = PolicyEffect::Deliver;
    let written = |version| DocumentWriteResult { is_written: true, version };
    let refused = |version| DocumentWriteResult { is_written: false, version };
    assert_eq!(store(&q, write("a", 1, 2, deliver)).await, refused(0));
    assert_eq!(store(&q, write("a", 0, 1, deliver)).await, written(1));
    assert_eq!(store(&q, write("a", 0, 1, deliver)).await, refused(1));
    assert_eq!(store(&q, write("a", 1, 9, pause)).await, written(9));
    assert_eq!(store(&q, write("a", 9, 9, deliver)).await, written(9), "of two equal versions one");
    // Each of a call by itself.
    let call = vec![write("a", 1, 2, deliver), write("b.*", 0, 4, deliver)];
    assert_eq!(q.store.write_documents(call, None).await.unwrap(), [refused(9), written(4)]);
    let read = stored(&q).await;
    let names: Vec<_> = read.iter().map(|p| (p.name.to_string(), p.version)).collect();
    assert_eq!(names, [("topic/a".to_owned(), 9), ("topic/b.*".to_owned(), 4)]);
    assert_eq!(read[0].body, write("a", 9, 9, deliver).body);
    assert!(q.store.write_documents(Vec::new(), None).await.unwrap().is_empty());
}

pub(crate) async fn changes_are_read_in_their_order_part_by_part(q: Fixture) {
    let empty = q.store.documents(0, 10).await.unwrap();
    assert_eq!((empty.documents.len(), empty.read_to, empty.last_sequence), (0, 0, 0));
    for n in 0..23 {
        store(&q, write(&format!("t{n:02}"), 0, 1, PolicyEffect::Deliver)).await;
    }
    store(&q, write("t00", 1, 2, PolicyEffect::Deliver)).await;
    let mut want: Vec<_> = (1..23).map(|n| format!("topic/t{n:02}")).collect();
    want.push("topic/t00".into());
    assert_eq!(names(&q).await, want);
}

/// Other versions of ringq may have kinds that this one does not know.
pub(crate) async fn documents_of_unknown_kinds_are_skipped_and_stay(q: Fixture) {
    const MANY: u64 = 23;
    let other = PolicyEffect::Forget;
    store(&q, write("first", 0, 1, PolicyEffect::Deliver)).await;
    for n in 0..MANY {
        store(&q, write(&format!("x{n}"), 0, 2 + n, other)).await;
    }
    store(&q, write("last", 0, 1, other)).await;
    let has_unknown = async || q.store.documents(0, 1_000).await.unwrap().has_unknown;
    assert!(!has_unknown().await);
    let Some(unknown) = q.make_unknown("topic/x").await else { return };
    assert!(has_unknown().await);
    assert_eq!((unknown, names(&q).await), (MANY, vec!["topic/first".into(), "topic/last".into()]));
    // A name within another kind is not theirs.
    assert!(store(&q, write("x0", 0, 1, other)).await.is_written);
    assert_eq!(names(&q).await, ["topic/first", "topic/last", "topic/x0"]);
    let page = q.store.documents(0, 1_000).await.unwrap();
    let removal = DocumentRemoval {
        last_sequence: page.last_sequence,
        expected: 0,
        horizon: 100,
        documents: page.documents.into_iter().map(|known| (known.name, known.version)).collect(),
    };
    assert!(q.store.forget_documents(removal, None).await.unwrap());
    assert_eq!(names(&q).await, ["topic/first"]);
    assert_eq!(q.make_unknown("none").await, Some(MANY), "their versions stay");
}

/// A page is an answer of bounded size, and has at least one document.
pub(crate) async fn a_page_of_large_documents_is_cut(q: Fixture) {
    const BODY: usize = 700 << 10;
    for n in 0..5 {
        let large = write(&format!("t{n}"), 0, 1, PolicyEffect::Deliver);
        store(&q, DocumentWrite { body: vec![b'x'; BODY].into(), ..large }).await;
    }
    let (mut after, mut pages) = (0, Vec::new());
    while pages.iter().sum::<usize>() < 5 {
        let page = q.store.documents(after, 512).await.unwrap();
        pages.push(page.documents.len());
        after = page.read_to;
    }
    assert_eq!(pages, [2, 2, 1], "of {BODY} bytes each");
}

/// One that lost its value hides none behind it, and is written anew.
pub(crate) async fn a_document_that_was_removed_by_hand_hides_no_other(q: Fixture) {
    for name in ["a", "b", "c"] {
        store(&q, write(name, 0, 1, PolicyEffect::Deliver)).await;
    }
    if !q.remove_document_by_hand("topic/b").await {
        return;
    }
    assert_eq!(names(&q).await, ["topic/a", "topic/c"]);
    assert!(store(&q, write("b", 0, 1, PolicyEffect::Deliver)).await.is_written);
    assert_eq!(names(&q).await, ["topic/a", "topic/c", "topic/b"]);
    // The last one, too.
    assert!(q.remove_document_by_hand("topic/b").await);
    assert_eq!(names(&q).await, ["topic/a", "topic/c"]);
}

/// Documents without an effect create no topic, and are removed as others.
pub(crate) async fn a_document_without_a_topic_is_stored_and_removed(q: Fixture) {
    let write = |expected, version, is_live| DocumentWrite {
        name: DocumentName::TopicFile,
        expected,
        version,
        is_live,
        body: Bytes::from_static(b"file"),
        effect: None,
    };
    // With one that has an effect behind it.
    let call = vec![write(0, 1, true), policy_write("a", 0, 1, PolicyEffect::Deliver)];
    let written = q.store.write_documents(call, None).await.unwrap();
    assert!(written.iter().all(|written| written.is_written), "{written:?}");
    let topics = q.store.topics(String::new(), None, 10).await.unwrap();
    assert_eq!(topics.len(), 1, "only that of the policy");
    let file = (DocumentName::TopicFile, Bytes::from_static(b"file"));
    let read = stored(&q).await.into_iter().next().unwrap();
    assert_eq!((read.name, read.body), file);
    for (version, is_live) in [(2, true), (3, false)] {
        assert!(store(&q, write(version - 1, version, is_live)).await.is_written);
        let page = q.store.documents(0, 10).await.unwrap();
        let removal = DocumentRemoval {
            last_sequence: page.last_sequence,
            expected: page.horizon.version,
            horizon: version,
            documents: vec![(DocumentName::TopicFile, version)],
        };
        assert!(q.store.forget_documents(removal, None).await.unwrap());
        assert_eq!(stored(&q).await.len(), if is_live { 2 } else { 1 });
    }
}

/// Removed documents are removed for good, and a server that has not read them can see that.
pub(crate) async fn documents_of_which_nothing_is_left_are_removed(q: Fixture) {
    let mut last = 0;
    let mut horizon = 0;
    for count in [0, 1, 2, 13, 511] {
        for n in 0..count {
            let effect = if n % 2 == 0 { PolicyEffect::Forget } else { PolicyEffect::Release };
            store(&q, write(&format!("t{n:03}"), 0, horizon + 10 + n, effect)).await;
        }
        let live = store(&q, write("live.*", 0, 9, PolicyEffect::Deliver)).await;
        assert!(live.is_written || live.version == 9);
        let page = q.store.documents(0, 1_000).await.unwrap();
        assert_eq!((page.documents.len() as u64, page.horizon.version), (count + 1, horizon));
        assert!(page.last_sequence >= last + count);
        last = page.last_sequence;
        let names = page.documents.iter().map(|policy| (policy.name.clone(), policy.version));
        let removal = DocumentRemoval {
            last_sequence: last,
            expected: horizon,
            horizon: horizon + 1_000,
            documents: names.collect(),
        };
        for refused in [
            DocumentRemoval { last_sequence: last + 1, ..removal.clone() },
            DocumentRemoval { expected: horizon + 1, ..removal.clone() },
        ] {
            assert!(!q.store.forget_documents(refused, None).await.unwrap());
        }
        let mut other = removal.clone();
        other.documents.iter_mut().for_each(|(_, version)| *version += 1);
        assert!(
            q.store.forget_documents(DocumentRemoval { horizon, ..other }, None).await.unwrap()
        );
        assert_eq!(stored(&q).await.len() as u64, count + 1, "they have other versions");
        assert!(q.store.forget_documents(removal, None).await.unwrap());
        horizon += 1_000;
        let page = q.store.documents(0, 1_000).await.unwrap();
        let left: Vec<_> = page.documents.iter().map(|policy| policy.name.to_string()).collect();
        assert_eq!(left, ["topic/live.*"], "one of which something is left is not removed");
        let late = store(&q, write("t000", 0, horizon, PolicyEffect::Deliver)).await;
        assert_eq!((late.is_written, late.version), (false, 0), "a server that has not read it");
        let want = DocumentHorizon { version: horizon, sequence: last };
        assert_eq!((page.last_sequence, page.horizon), (last, want), "changes are counted on");
    }
    let Some(mut q) = q.lasting() else { return };
    q.reopen().await;
    let want = DocumentHorizon { version: horizon, sequence: last };
    assert_eq!(q.store.documents(0, 10).await.unwrap().horizon, want);
}
