//! The part of RESP2 and RESP3 that is needed to split a byte stream into messages.

/// Returns the length of the value at the start of `data`; `None`: it is incomplete.
pub(super) fn length(data: &[u8]) -> Option<usize> {
    let end = line_end(data)?;
    let number = || std::str::from_utf8(&data[1..end]).ok()?.parse::<i64>().ok();
    let after = end + 2;
    match data[0] {
        // A blob, or null.
        b'$' | b'=' | b'!' => match usize::try_from(number()?) {
            Ok(size) => Some(after + size + 2).filter(|whole| *whole <= data.len()),
            Err(_) => Some(after),
        },
        b'*' | b'~' | b'>' => elements(data, after, number()?),
        b'%' => elements(data, after, 2 * number()?),
        // Attributes precede their value.
        b'|' => elements(data, after, 2 * number()? + 1),
        _ => Some(after),
    }
}

/// Returns the strings of a request or of a flat list of strings; other values are left out.
pub(super) fn strings(data: &[u8]) -> Vec<&[u8]> {
    let mut rest = line_end(data).map_or(&[][..], |end| &data[end + 2..]);
    let mut strings = Vec::new();
    while let Some(whole) = length(rest) {
        if rest[0] == b'$'
            && let Some(end) = line_end(rest)
        {
            strings.push(&rest[end + 2..whole.max(end + 4) - 2]);
        }
        rest = &rest[whole..];
    }
    strings
}

/// Encodes a request of these words.
pub(super) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn elements(data: &[u8], mut at: usize, count: i64) -> Option<usize> {
    for _ in 0..count {
        at += length(&data[at..])?;
    }
    Some(at)
}

fn line_end(data: &[u8]) -> Option<usize> {
    data.windows(2).position(|pair| pair == b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_measured_and_parts_are_not() {
        for value in [
            "+OK\r\n",
            ":1\r\n",
            "_\r\n",
            "$3\r\na\r\n\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "*0\r\n",
            "*-1\r\n",
            "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
            ">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            "%1\r\n+a\r\n:1\r\n",
            "|1\r\n+a\r\n:1\r\n:2\r\n",
        ] {
            let more = format!("{value}+MORE\r\n");
            assert_eq!(length(more.as_bytes()), Some(value.len()), "{value:?}");
            for part in 0..value.len() {
                assert_eq!(length(&value.as_bytes()[..part]), None, "{part} of {value:?}");
            }
        }
    }

    #[test]
    fn the_strings_of_a_request() {
        let request = b"*3\r\n$4\r\nECHO\r\n$0\r\n\r\n$2\r\nhi\r\n";
        assert_eq!(strings(request), [&b"ECHO"[..], b"", b"hi"]);
    }
}
