//! `ringq job list`.

use clap::{Args, ValueEnum};

use super::connect::{Connect, Connection};
use super::exit::{Failure, note};
use super::output::{JsonList, Out, OutputArgs, Table};
use super::text::shorten;
use super::times::Now;
use super::{topic, values, view};
use crate::domain::limit;
use crate::pb::{GetTopicStatsRequest, Job, JobState, JobView, ListJobsRequest};

/// Jobs in one call at most.
const PAGE: usize = limit::LIST_JOBS_PAGE_MAX as usize;
/// Rows of one table: columns are laid out for so many, so that a long list has bounded memory.
const TABLE_ROWS: usize = 1000;
/// Characters of an error in a column.
const ERROR_CHARS: usize = 60;

/// Which jobs, and how to print them.
#[derive(Debug, Args)]
#[command(after_help = "\
Within a state the order is that of the due times. Payloads, results and attempts are left out; \
--full and `ringq job get` have them.

Examples:
  ringq job list emails
  ringq job list emails --state dead,backoff
  ringq job list emails --state dead --limit 0 -o json | jq -r '.[].spec.id'
  ringq job list mail --state succeeded --full -o json | jq -r '.[].result.text'")]
pub(in crate::cli) struct List {
    /// The topic
    #[arg(value_parser = values::some_text)]
    topic: String,
    /// Only jobs in these states [default: all, in this order]
    #[arg(long, value_enum, value_name = "STATE", value_delimiter = ',', ignore_case = true)]
    state: Vec<State>,
    /// Jobs at most; 0: all of them
    #[arg(long, value_name = "NUMBER", default_value_t = 100, allow_negative_numbers = true, value_parser = values::number)]
    limit: usize,
    /// With -o json: payloads, results and attempts, too
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: Connect,
}

/// States in the order of interest: what is at work, what waits, what has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Held by a worker
    Running,
    /// Waits for a worker
    Ready,
    /// Has failed and waits for its next attempt
    Backoff,
    /// Waits for its time
    Scheduled,
    /// A dead letter
    Dead,
    /// Done, and still kept
    Succeeded,
    /// Deleted before it had ended, and still kept
    Cancelled,
    /// Did not run in time
    Expired,
}

// === impl State ===

impl From<State> for JobState {
    fn from(state: State) -> JobState {
        match state {
            State::Running => JobState::Running,
            State::Ready => JobState::Ready,
            State::Backoff => JobState::Backoff,
            State::Scheduled => JobState::Scheduled,
            State::Dead => JobState::Dead,
            State::Succeeded => JobState::Succeeded,
            State::Cancelled => JobState::Cancelled,
            State::Expired => JobState::Expired,
        }
    }
}

/// Prints rows as they come.
struct Printer {
    out: Out,
    now: Now,
    /// None: as a table.
    json: Option<JsonList>,
    waiting: Vec<Job>,
    printed: usize,
}

// === impl List ===

impl List {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        if self.full && !self.output.is_json() {
            let hint = "add -o json; `ringq job get` prints one job in full";
            return Err(Failure::usage("--full does not fit in columns").hint(hint));
        }
        let connection = self.connect.connection()?;
        let mut printer = Printer::new(self.output.is_json());
        let mut unreachable = Vec::new();
        let mut more = false;
        for state in self.states() {
            more = self.list(&connection, state, &mut printer, &mut unreachable).await?;
            if more {
                break;
            }
        }
        let printed = printer.end()?;
        if printed == 0 {
            self.exists(&connection).await?;
            let part = if unreachable.is_empty() { "" } else { " on the shards that answer" };
            note(&format!("no such jobs in {}{part}", self.topic));
        }
        if more {
            note(&format!("the first {printed}; --limit 0 lists all"));
        }
        topic::partial(unreachable.iter())
    }

    fn states(&self) -> Vec<State> {
        if self.state.is_empty() { State::value_variants().to_vec() } else { self.state.clone() }
    }

    /// The jobs in one state; whether the limit left some out.
    async fn list(
        &self,
        connection: &Connection,
        state: State,
        printer: &mut Printer,
        unreachable: &mut Vec<String>,
    ) -> Result<bool, Failure> {
        let mut page_token = String::new();
        // One more than wanted says whether there are more.
        let page_size = self.left(printer.printed).saturating_add(1).min(PAGE);
        loop {
            let left = self.left(printer.printed);
            let request = connection.request(ListJobsRequest {
                topic: self.topic.clone(),
                state: JobState::from(state).into(),
                page_size: i32::try_from(page_size).unwrap_or(i32::MAX),
                page_token,
                view: self.view().into(),
                ..Default::default()
            });
            let what = format!("cannot list the jobs of {}", self.topic);
            let mut admin = connection.client().admin();
            let page = connection.call(&what, admin.list_jobs(request)).await?;
            unreachable.extend(page.unreachable_shards);
            let more = page.jobs.len() > left;
            printer.rows(page.jobs.into_iter().take(left))?;
            page_token = page.next_page_token;
            if more || page_token.is_empty() || printer.out.is_closed() {
                return Ok(more);
            }
        }
    }

    fn view(&self) -> JobView {
        if self.full { JobView::Full } else { JobView::Basic }
    }

    fn left(&self, printed: usize) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit - printed.min(self.limit) }
    }

    /// A list of a topic that is not there is empty; a person has probably mistyped its name.
    async fn exists(&self, connection: &Connection) -> Result<(), Failure> {
        let request = connection.request(GetTopicStatsRequest { name: self.topic.clone() });
        let what = format!("cannot list the jobs of {}", self.topic);
        let mut topics = connection.client().topics();
        connection.call(&what, topics.get_topic_stats(request)).await.map(drop)
    }
}

// === impl Printer ===

impl Printer {
    fn new(json: bool) -> Printer {
        Printer {
            out: Out::new(),
            now: Now::read(),
            json: json.then(JsonList::new),
            waiting: Vec::new(),
            printed: 0,
        }
    }

    fn rows(&mut self, jobs: impl Iterator<Item = Job>) -> Result<(), Failure> {
        for job in jobs {
            self.printed += 1;
            match &mut self.json {
                Some(list) => list.row(&mut self.out, &job)?,
                None => self.waiting.push(job),
            }
        }
        if self.waiting.len() >= TABLE_ROWS { self.table() } else { Ok(()) }
    }

    fn table(&mut self) -> Result<(), Failure> {
        table(&self.waiting, self.now).print(&mut self.out)?;
        self.waiting.clear();
        Ok(())
    }

    /// Prints what is left; how many there were in all.
    fn end(mut self) -> Result<usize, Failure> {
        self.table()?;
        if let Some(list) = self.json {
            list.end(&mut self.out)?;
        }
        Ok(self.printed)
    }
}

fn table(jobs: &[Job], now: Now) -> Table {
    let mut table = Table::new([
        "ID",
        "STATE",
        "DUE",
        "PRIORITY",
        "FAILURES",
        "DELIVERIES",
        "CREATED",
        "WORKER",
        "LAST ERROR",
    ]);
    for job in jobs {
        let spec = job.spec.clone().unwrap_or_default();
        table.row([
            spec.id,
            view::state(job.state()).to_owned(),
            now.relative(job.due_time),
            spec.priority.unwrap_or(0).to_string(),
            job.failures.to_string(),
            job.deliveries.to_string(),
            now.relative(job.create_time),
            job.worker_id.clone(),
            shorten(&job.last_error, ERROR_CHARS),
        ]);
    }
    table
}
