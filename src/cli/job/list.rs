//! `ringq job list`: lists jobs of a topic.

use clap::{Args, ValueEnum as _};

use super::connect::{ConnectArgs, ServerConnection};
use super::exit::{CommandFailure, fail_if_partial, print_note};
use super::job_state::{self, JobStateArg};
use super::output::{JsonList, OutputArgs, StdoutWriter, Table};
use super::text::shorten;
use super::times::Now;
use super::values;
use crate::domain::limit;
use crate::pb::{GetTopicStatsRequest, Job, JobState, JobView, ListJobsRequest};

/// Most jobs per call.
const PAGE: usize = limit::LIST_JOBS_PAGE_MAX as usize;
/// Rows of one table: a long list is laid out in parts, so that its memory is bounded.
const TABLE_ROWS: usize = 1000;
/// Most characters of an error in a column.
const ERROR_CHARS: usize = 60;

/// Arguments of `ringq job list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Within a state the order is that of the due times. Payloads, results and attempts are left out; \
--full and `ringq job get` have them.

Examples:
  ringq job list emails
  ringq job list emails --state dead,backoff
  ringq job list emails --state dead --limit 0 -o json | jq -r '.[].spec.id'
  ringq job list mail --state succeeded --full -o json | jq -r '.[].result.text'")]
pub(in crate::cli) struct JobListArgs {
    /// The topic
    #[arg(value_parser = values::non_empty)]
    topic: String,
    /// Only jobs in these states [default: all, in this order]
    #[arg(long, value_enum, value_name = "STATE", value_delimiter = ',', ignore_case = true)]
    state: Vec<JobStateArg>,
    /// Most jobs to list; 0: all
    #[arg(long, value_name = "NUMBER", default_value_t = 100, allow_negative_numbers = true, value_parser = values::number)]
    limit: usize,
    /// With -o json: also payloads, results and attempts
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Printer of rows as they arrive.
struct JobListPrinter {
    out: StdoutWriter,
    now: Now,
    /// JSON list. None: a table.
    json: Option<JsonList>,
    buffered: Vec<Job>,
    printed: usize,
}

// === impl JobListArgs ===

impl JobListArgs {
    pub(super) async fn run(&self) -> Result<(), CommandFailure> {
        if self.full && !self.output.is_json() {
            let hint = "add -o json; `ringq job get` prints one job in full";
            return Err(CommandFailure::usage("--full does not fit in columns").with_hint(hint));
        }
        let connection = self.connect.connection()?;
        let mut printer = JobListPrinter::new(self.output.is_json());
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
            self.check_topic_exists(&connection).await?;
            let part = if unreachable.is_empty() { "" } else { " on the shards that answer" };
            print_note(&format!("no such jobs in {}{part}", self.topic));
        }
        if more {
            print_note(&format!("the first {printed}; --limit 0 lists all"));
        }
        fail_if_partial(unreachable.iter())
    }

    fn states(&self) -> Vec<JobStateArg> {
        if self.state.is_empty() {
            JobStateArg::value_variants().to_vec()
        } else {
            self.state.clone()
        }
    }

    /// Lists the jobs in one state; returns whether the limit left some out.
    async fn list(
        &self,
        connection: &ServerConnection,
        state: JobStateArg,
        printer: &mut JobListPrinter,
        unreachable: &mut Vec<String>,
    ) -> Result<bool, CommandFailure> {
        let mut page_token = String::new();
        // Reads one more than the limit, to detect that there are more.
        let page_size = self.remaining(printer.printed).saturating_add(1).min(PAGE);
        loop {
            let left = self.remaining(printer.printed);
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

    fn remaining(&self, printed: usize) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit - printed.min(self.limit) }
    }

    /// Fails if the topic does not exist: its empty list is probably a mistyped name.
    async fn check_topic_exists(
        &self,
        connection: &ServerConnection,
    ) -> Result<(), CommandFailure> {
        let request = connection.request(GetTopicStatsRequest { name: self.topic.clone() });
        let what = format!("cannot list the jobs of {}", self.topic);
        let mut topics = connection.client().topics();
        connection.call(&what, topics.get_topic_stats(request)).await.map(drop)
    }
}

// === impl JobListPrinter ===

impl JobListPrinter {
    fn new(json: bool) -> JobListPrinter {
        JobListPrinter {
            out: StdoutWriter::new(),
            now: Now::read(),
            json: json.then(JsonList::new),
            buffered: Vec::new(),
            printed: 0,
        }
    }

    fn rows(&mut self, jobs: impl Iterator<Item = Job>) -> Result<(), CommandFailure> {
        for job in jobs {
            self.printed += 1;
            match &mut self.json {
                Some(list) => list.row(&mut self.out, &job)?,
                None => self.buffered.push(job),
            }
        }
        if self.buffered.len() >= TABLE_ROWS { self.table() } else { Ok(()) }
    }

    fn table(&mut self) -> Result<(), CommandFailure> {
        table(&self.buffered, self.now).print(&mut self.out)?;
        self.buffered.clear();
        Ok(())
    }

    /// Prints the remaining rows; returns the number of all rows.
    fn end(mut self) -> Result<usize, CommandFailure> {
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
            job_state::name(job.state()).to_owned(),
            now.relative(job.due_time.filter(|_| !job_state::is_terminal(job.state()))),
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
