//! This command once more, for the shell: with all of its flags, on other lines.

/// The words after `ringq enqueue`.
pub(super) struct Again(Vec<Word>);

enum Word {
    /// As the shell wants it.
    Kept(String),
    /// `--lines` and its file.
    Lines,
}

/// A token is not shown. The shell says so where it is not in this variable.
const TOKEN: &str = "--token \"${RINGQ_TOKEN:?}\"";

// === impl Again ===

impl Again {
    /// As this process was called.
    pub(super) fn of_this_process() -> Again {
        let args = std::env::args_os().skip(2);
        Again::of(args.map(|arg| arg.to_string_lossy().into_owned()))
    }

    /// Of words that were understood, so that each flag has its value.
    pub(super) fn of(args: impl IntoIterator<Item = String>) -> Again {
        let (mut words, mut args) = (Vec::new(), args.into_iter());
        while let Some(arg) = args.next() {
            let (flag, value) = arg.split_once('=').map_or((&*arg, None), |(f, v)| (f, Some(v)));
            match flag {
                "--lines" | "--token" => {
                    if value.is_none() {
                        args.next();
                    }
                    let kept = || Word::Kept(TOKEN.to_owned());
                    words.push(if flag == "--lines" { Word::Lines } else { kept() });
                }
                "--" => {
                    words.push(Word::Kept(arg));
                    words.extend(args.by_ref().map(|arg| Word::Kept(quoted(&arg))));
                }
                _ => words.push(Word::Kept(quoted(&arg))),
            }
        }
        Again(words)
    }

    /// For lines on standard input.
    pub(super) fn with_lines(&self) -> String {
        self.with("--lines -")
    }

    /// For one job on standard input, whose id is in the variable `id`.
    pub(super) fn with_one(&self) -> String {
        format!("{} -", self.with("--id \"$id\""))
    }

    fn with(&self, instead: &str) -> String {
        let words = self.0.iter().map(|word| match word {
            Word::Kept(word) => word,
            Word::Lines => instead,
        });
        ["ringq", "enqueue"].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// A word as the shell wants it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=%+,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(args: &[&str]) -> Again {
        Again::of(args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn all_flags_are_kept_and_the_lines_are_others() {
        let args = ["t", "--lines", "my jobs", "--header", "a=it's", "-q", "--delay=5m"];
        let kept = r"--header 'a=it'\''s' -q --delay=5m";
        assert_eq!(again(&args).with_lines(), format!("ringq enqueue t --lines - {kept}"));
        assert_eq!(again(&args).with_one(), format!("ringq enqueue t --id \"$id\" {kept} -"));
        let args = ["--lines=-", "--", "t"];
        assert_eq!(again(&args).with_lines(), "ringq enqueue --lines - -- t");
        assert_eq!(again(&args).with_one(), "ringq enqueue --id \"$id\" -- t -");
    }

    #[test]
    fn a_token_is_not_shown() {
        for args in [
            &["t", "--token", "secret", "--lines", "-"][..],
            &["t", "--token=secret", "--lines", "-"],
        ] {
            let text = again(args).with_lines();
            assert_eq!(text, "ringq enqueue t --token \"${RINGQ_TOKEN:?}\" --lines -");
        }
    }
}
