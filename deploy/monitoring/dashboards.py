#!/usr/bin/env python3
"""Writes the Grafana dashboards overview.json, topic.json and shard.json beside this file, and into the chart.

    deploy/monitoring/dashboards.py [DIR]     writes them into DIR instead

A panel is a title, a unit, queries with their legends, and a text that states what to look for. Gauges of jobs are
exported by every server with the same value: max, not sum. JOB in a query selects the installation.
"""

import json
import sys
from pathlib import Path

JOB = 'job="$job"'
RATE = "[$__rate_interval]"
# Values from which a panel turns orange and red.
ANY = (None, 1)
WAITING = (60, 300)


def panel(title, unit, queries, text, kind="timeseries", limits=(None, None), stack=False, good_from=None, red_if_any=None):
    if isinstance(queries, str):
        queries = [(queries, "{{instance}}" if kind == "timeseries" else "")]
    orange, red = limits
    steps = [{"color": "green", "value": None}]
    steps += [{"color": "orange", "value": orange}] if orange is not None else []
    steps += [{"color": "red", "value": red}] if red is not None else []
    if good_from is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": good_from}]
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}, "min": None if unit == "s" else 0}
    options = {}
    if kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line", "fillOpacity": 20 if stack else 5, "showPoints": "never", "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if red is not None or orange is not None else "off"},
        }
        options = {"legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
    elif kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                   "colorMode": "background", "graphMode": "area", "textMode": "value_and_name" if len(queries) > 1 else "auto"}
    elif kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Oranges"}}
    return {
        "type": kind, "title": title, "description": text, "datasource": source(),
        "fieldConfig": {"defaults": {key: value for key, value in defaults.items() if value is not None},
                        "overrides": [red_from_1(red_if_any)] if red_if_any else []},
        "options": options,
        "targets": [{"refId": chr(ord("A") + number), "datasource": source(), "expr": expression.replace("JOB", JOB).replace("RATE", RATE),
                     "legendFormat": legend, "editorMode": "code", "range": True,
                     **({"format": "heatmap"} if kind == "heatmap" else {})}
                    for number, (expression, legend) in enumerate(queries)],
    }


def source():
    return {"type": "prometheus", "uid": "${datasource}"}


def red_from_1(legend):
    """One series of a panel is red, whatever the limits of the others are."""
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    return {"matcher": {"id": "byName", "options": legend},
            "properties": [{"id": "thresholds", "value": {"mode": "absolute", "steps": steps}}]}


def quantiles(metric, labels):
    """Half, 19 of 20 and 99 of 100."""
    return [(f"histogram_quantile({part}, sum by (le) (rate({metric}_bucket{{{labels}}}RATE)))", name)
            for part, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))]


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": source(), "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "sort": 1, "hide": 0, "multi": False, "includeAll": False}


def dashboard(uid, title, text, rows, *variables):
    panels, y, number = [], 0, 0
    for row, height, content in rows:
        number += 1
        panels.append({"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        width = 24 // min(len(content), 6 if height < 6 else 3)
        for index, each in enumerate(content):
            x = index * width % (24 // width * width)
            if index and not x:
                y += height
            number += 1
            panels.append({"id": number, **each, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        y += height
    return {
        "uid": uid, "title": title, "description": text, "tags": ["ringq"], "schemaVersion": 41, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "timezone": "", "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "ringq", "tags": ["ringq"], "asDropdown": False, "keepTime": True,
                   "includeVars": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}],
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0},
            variable("job", "Installation", "label_values(ringq_build_info, job)"), *variables]},
        "panels": panels,
    }


FAILURES = 'outcome=~"retried|lease_expired|dead"'

OVERVIEW = dashboard("ringq-overview", "ringq: overview", "All servers, topics and shards of an installation.", [
    ("State", 4, [
        panel("Servers", "short", [("count(ringq_build_info{JOB})", "up"), ('count(up{JOB} == 0) or vector(0)', "down")],
              "Servers that are scraped, and those that cannot be. Look for a number of servers that is not yours.", "stat",
              red_if_any="down"),
        panel("Shards down", "short", "count(min by (shard) (ringq_shard_up{JOB}) == 0) or vector(0)",
              "Shards that at least one server cannot use. More than 0: their jobs wait; see the dashboard of the shard.", "stat", ANY),
        panel("Ready jobs", "short", 'sum(max by (topic) (ringq_jobs{JOB,state="ready"}))',
              "Jobs that wait for a worker. Look for a number that only rises. No data: no shard answers.", "stat"),
        panel("Oldest ready job", "s", "max(ringq_oldest_ready_age_seconds{JOB})",
              "How long the job that is due longest has waited. Above 5 minutes RingqJobsWait fires.", "stat", WAITING),
        panel("Dead jobs", "short", 'sum(max by (topic) (ringq_jobs{JOB,state="dead"}))',
              "Dead letters that are kept. They run again only when redriven.", "stat", (1, None)),
        panel("Alerts", "short", 'count(ALERTS{alertname=~"Ringq.*",alertstate="firing"}) or vector(0)',
              "Alerts of ringq that fire now, of all installations of this Prometheus.", "stat", ANY),
    ]),
    ("Jobs", 8, [
        panel("Jobs in and out", "ops", [
            ('sum(rate(ringq_jobs_enqueued_total{JOB,outcome=~"created|replaced|deferred|rescheduled"}RATE))', "enqueued"),
            ("sum(rate(ringq_jobs_delivered_total{JOB}RATE))", "delivered"),
            ('sum(rate(ringq_jobs_settled_total{JOB,outcome="succeeded"}RATE))', "succeeded")],
            "Jobs per second. Enqueued above succeeded for long: workers do not keep up. Delivered above succeeded: jobs are repeated."),
        panel("Enqueues by outcome", "ops", [("sum by (outcome) (rate(ringq_jobs_enqueued_total{JOB}RATE))", "{{outcome}}")],
              "unchanged: repeats of an id that exists. refused: not stored, the producer has to repeat; look at the shards."),
        panel("Ends of leases by outcome", "ops", [("sum by (outcome) (rate(ringq_jobs_settled_total{JOB}RATE))", "{{outcome}}")],
              "retried: a worker failed. lease_expired: a worker hangs. orphaned: a worker died or its connection broke. "
              "dead: a job has no attempt left. refused: Acks of leases that were over."),
        panel("Jobs by state", "short", [("sum by (state) (max by (topic, state) (ringq_jobs{JOB}))", "{{state}}")],
              "Stored jobs, without those of a shard that does not answer: see Counted on the dashboard of the shard. No line: no shard answers.", stack=True),
        panel("Ready jobs, ten largest topics", "short", [('topk(10, max by (topic) (ringq_jobs{JOB,state="ready"}))', "{{topic}}")],
              "Which topic has the backlog. _other: all topics without series of their own."),
        panel("Oldest ready job, ten oldest topics", "s", [("topk(10, max by (topic) (ringq_oldest_ready_age_seconds{JOB}))", "{{topic}}")],
              "Which topic waits. A line that rises by 1 s per second: no worker takes its jobs.", limits=WAITING),
        panel("Wait until delivery", "s", quantiles("ringq_job_lag_seconds", "JOB"),
              "From the due time of a job to its delivery, of the jobs delivered then. Rises when workers do not keep up."),
        panel("Run time", "s", quantiles("ringq_job_run_seconds", "JOB"),
              "From a delivery to its Ack or Nack. Rises when workers, or what they call, become slow."),
        panel("Streams and free credit", "short", [("sum(ringq_streams{JOB})", "streams"), ("sum(ringq_stream_credit_waiting{JOB})", "free credit")],
              "Open streams of workers, and the jobs that they could take at once. Free credit of 0 beside ready jobs: more workers are needed."),
    ]),
    ("Calls", 8, [
        panel("Calls by method", "reqps", [("sum by (method) (rate(ringq_rpc_seconds_count{JOB}RATE))", "{{method}}")],
              "Calls per second that ended; a stream counts when it ends."),
        panel("Duration of calls, p95", "s", [
            ('histogram_quantile(0.95, sum by (method, le) (rate(ringq_rpc_seconds_bucket{JOB,method!~"Stream|Pull"}RATE)))', "{{method}}")],
            "Without Stream and Pull, which wait for jobs. Compare with the calls of the stores: the rest is the server."),
        panel("Calls that failed", "reqps", [('sum by (method, code) (rate(ringq_rpc_seconds_count{JOB,code!="OK"}RATE))', "{{method}} {{code}}")],
              "UNAVAILABLE: a shard is down. RESOURCE_EXHAUSTED: a limit or a full store. CANCELLED: the client left. "
              "INVALID_ARGUMENT: a mistake of the client."),
    ]),
    ("Shards", 8, [
        panel("Shards up", "short", [("min by (shard) (ringq_shard_up{JOB})", "{{shard}}")],
              "1: every server uses the shard. 0: at least one does not. Look at the dashboard of the shard."),
        panel("Duration of store calls, p95", "s", [
            ("histogram_quantile(0.95, sum by (shard, le) (rate(ringq_store_op_seconds_bucket{JOB}RATE)))", "{{shard}}")],
            "One shard above the others: a slow disk or Redis, or slow commands beside ringq."),
        panel("Store errors", "ops", [("sum by (shard, reason) (rate(ringq_store_errors_total{JOB}RATE))", "{{shard}} {{reason}}")],
              "Calls to shards that failed. The page about monitoring has the step for each reason."),
        panel("Store size", "bytes", [("max by (shard) (ringq_store_bytes{JOB})", "{{shard}}")],
              "Memory of a Redis; what a SQLite shard uses of its file, and its log. Look for one that grows while the number of jobs does not."),
        panel("Store fullness", "percentunit", [("max by (shard) (ringq_store_bytes{JOB} / ringq_store_max_bytes{JOB})", "{{shard}}")],
              "Of a Redis: used memory / maxmemory; without maxmemory it has no line. Of a SQLite shard: used / (used + free), on a large "
              "disk a small number until others fill it: watch the disk, too. At 100 % new jobs are refused.", limits=(0.85, 0.95)),
        panel("Ring", "short", [("max(ringq_rings_open{JOB})", "rings open"), ("max(ringq_ring_disagreement{JOB})", "servers disagree")],
              "Rings above 1: jobs of a former list of shards remain. Disagree 1: two servers have different lists.", limits=(None, 2)),
    ]),
    ("Identities", 8, [
        panel("Use by identity, ten largest", "reqps", [
            ("topk(10, sum by (identity) (rate(ringq_identity_calls_total{JOB}RATE)))", "{{identity}} calls"),
            ("topk(10, sum by (identity) (rate(ringq_identity_jobs_total{JOB}RATE)))", "{{identity}} jobs")],
            "Calls and new jobs per second. Who sends the load. No line: the servers have no identities."),
        panel("Bytes by identity, ten largest", "Bps", [
            ("topk(10, sum by (identity) (rate(ringq_identity_bytes_total{JOB}RATE)))", "{{identity}}")],
            "Payloads and headers of new jobs per second."),
        panel("Calls refused by quotas, and forged receipts", "reqps", [
            ("sum by (identity, quota) (rate(ringq_identity_refused_total{JOB}RATE)) > 0", "{{identity}} {{quota}}"),
            ("sum by (identity) (rate(ringq_identity_forged_receipts_total{JOB}RATE)) > 0", "{{identity}} forged receipts")],
            "Identities beyond their quotas. For long: the client does not wait as RetryInfo says, or the quota is too small. "
            "Forged receipts: the worker sends receipts that no server has made; see security."),
        panel("Waiting jobs of namespaces with a quota", "short", [
            ("max by (namespace) (ringq_namespace_waiting_jobs{JOB})", "{{namespace}}")],
            "Compare with waiting_jobs in the files of identities: beyond it new jobs are refused."),
        panel("Stored bytes of namespaces with a quota", "bytes", [
            ("max by (namespace) (ringq_namespace_stored_bytes{JOB})", "{{namespace}}")],
            "Compare with stored_bytes in the files of identities: beyond it new jobs are refused. An estimate."),
    ]),
    ("Servers", 8, [
        panel("Processor time", "percentunit", [("rate(process_cpu_seconds_total{JOB}RATE)", "{{instance}}")],
              "Processors in use, 100 % is one. Servers far apart: connections are not spread; see several servers."),
        panel("Memory", "bytes", [("process_resident_memory_bytes{JOB}", "{{instance}}")],
              "Resident memory. Jobs are not kept in memory: it follows streams, connections and calls, not the backlog."),
        panel("Open files", "percentunit", [("process_open_fds{JOB} / process_max_fds{JOB}", "{{instance}}")],
              "Connections and files in use, as a part of the limit. At 100 % connections are refused.", limits=(0.8, 0.9)),
        panel("Lost log lines", "short", [("increase(ringq_log_lines_lost_total{JOB}RATE)", "{{instance}}")],
              "The reader of standard error does not take them: look at the log driver or collector of that server.", limits=ANY),
        panel("Connections over a limit", "short", [
            ("sum by (port, reason) (rate(ringq_connections_refused_total{JOB}RATE))", "{{port}} {{reason}}")],
            "Connections closed per second. Displaced: without an identity, for newer ones. Rejected: raise max_connections, or find the client in the log."),
    ]),
])

TOPIC = dashboard("ringq-topic", "ringq: topic", "One topic on all shards.", [
    ("State", 4, [
        panel("Ready", "short", 'max(ringq_jobs{JOB,topic="$topic",state="ready"})', "Jobs that wait for a worker.", "stat"),
        panel("Running", "short", 'max(ringq_jobs{JOB,topic="$topic",state="running"})', "Jobs that workers hold now.", "stat"),
        panel("Later", "short", 'max(ringq_jobs{JOB,topic="$topic",state="scheduled"}) + max(ringq_jobs{JOB,topic="$topic",state="backoff"})',
              "Jobs whose due time is ahead: delayed, or failed and waiting for the next attempt.", "stat"),
        panel("Dead", "short", 'max(ringq_jobs{JOB,topic="$topic",state="dead"})', "Dead letters; they run again only when redriven.", "stat", (1, None)),
        panel("Oldest ready job", "s", 'max(ringq_oldest_ready_age_seconds{JOB,topic="$topic"})',
              "How long the job that is due longest has waited.", "stat", WAITING),
        panel("Time to empty", "s", 'max(ringq_jobs{JOB,topic="$topic",state="ready"}) / (sum(rate(ringq_jobs_settled_total{JOB,topic="$topic",outcome="succeeded"}RATE)) > 0)',
              "Ready jobs divided by the jobs that succeed per second: how long the backlog lasts if no job comes. No value: no job succeeds.", "stat"),
    ]),
    ("Flow", 8, [
        panel("Jobs in and out", "ops", [
            ('sum(rate(ringq_jobs_enqueued_total{JOB,topic="$topic",outcome=~"created|replaced|deferred|rescheduled"}RATE))', "enqueued"),
            ('sum(rate(ringq_jobs_delivered_total{JOB,topic="$topic"}RATE))', "delivered"),
            ('sum(rate(ringq_jobs_settled_total{JOB,topic="$topic",outcome="succeeded"}RATE))', "succeeded")],
            "Jobs per second. Enqueued above succeeded for long: the backlog grows. Delivered above succeeded: jobs are repeated."),
        panel("Enqueues by outcome", "ops", [
            ('sum by (outcome) (rate(ringq_jobs_enqueued_total{JOB,topic="$topic"}RATE))', "{{outcome}}"),
            ('sum(rate(ringq_jobs_evicted_total{JOB,topic="$topic"}RATE))', "evicted"),
        ],
              "unchanged: repeats of an id that exists. refused: not stored."),
        panel("Deliveries by mode", "ops", [('sum by (mode) (rate(ringq_jobs_delivered_total{JOB,topic="$topic"}RATE))', "{{mode}}")],
              "Jobs that went to streams and to pulls."),
        panel("Ends of leases by outcome", "ops", [('sum by (outcome) (rate(ringq_jobs_settled_total{JOB,topic="$topic"}RATE))', "{{outcome}}")],
              "retried: a worker failed. lease_expired: a worker hangs. orphaned: a worker died. dead: a job has no attempt left."),
        panel("Failures", "percentunit", [
            (f'sum(rate(ringq_jobs_settled_total{{JOB,topic="$topic",{FAILURES}}}RATE)) / (sum(rate(ringq_jobs_settled_total{{JOB,topic="$topic",outcome!="refused"}}RATE)) > 0)', "failed")],
            "Part of the leases that ended with a failure, an expired lease or a dead job. Look for a step at a deployment of the workers.", limits=(0.1, 0.5)),
        panel("Jobs by state", "short", [('max by (state) (ringq_jobs{JOB,topic="$topic"})', "{{state}}")],
              "Stored jobs, without those of shards that do not answer.", stack=True),
    ]),
    ("Time", 8, [
        panel("Wait until delivery", "s", quantiles("ringq_job_lag_seconds", 'JOB,topic="$topic"'),
              "From the due time of a job to its delivery. Rises when workers do not keep up."),
        panel("Run time", "s", quantiles("ringq_job_run_seconds", 'JOB,topic="$topic"'),
              "From a delivery to its Ack or Nack. Close to the lease: workers must extend."),
        panel("Run time, all jobs", "s", [('sum by (le) (rate(ringq_job_run_seconds_bucket{JOB,topic="$topic"}RATE))', "{{le}}")],
              "How run times spread. Two bands: two kinds of jobs in one topic; give them topics of their own.", "heatmap"),
    ]),
], variable("topic", "Topic", "label_values(ringq_jobs_enqueued_total{job=\"$job\"}, topic)"))

SHARD = dashboard("ringq-shard", "ringq: shard", "One shard as all servers see it.", [
    ("State", 4, [
        panel("Up", "short", 'min(ringq_shard_up{JOB,shard="$shard"})', "1: every server uses the shard. 0: at least one does not.", "stat", good_from=1),
        panel("Counted", "short", 'max(ringq_shard_counted{JOB,shard="$shard"})',
              "1: the gauges of jobs contain this shard. 0: its jobs are missing in all numbers of jobs.", "stat", good_from=1),
        panel("Refuses new jobs", "short", 'max(ringq_shard_refuses_jobs{JOB,shard="$shard"})', "1: the policy of this Redis could evict jobs.", "stat", ANY),
        panel("Refuses reads", "short", 'max(ringq_shard_refuses_reads{JOB,shard="$shard"})', "1: reads by users are refused, because they are not answered in time.", "stat", ANY),
        panel("Size", "bytes", 'max(ringq_store_bytes{JOB,shard="$shard"})', "Memory of a Redis; what a SQLite shard uses of its file, and its log.", "stat"),
        panel("Clock", "s", 'max(abs(ringq_shard_clock_skew_seconds{JOB,shard="$shard"}))',
              "Difference between the clock of the shard and that of a server. Above 1 s RingqClocksDiffer fires.", "stat", (0.5, 1)),
    ]),
    ("Calls", 8, [
        panel("Calls by kind", "ops", [('sum by (op) (rate(ringq_store_op_seconds_count{JOB,shard="$shard"}RATE))', "{{op}}")],
              "Calls per second; a call carries up to 512 jobs. The page about monitoring explains the kinds."),
        panel("Duration of calls", "s", quantiles("ringq_store_op_seconds", 'JOB,shard="$shard"'),
              "Look for a p99 far above the p95: a slow disk, or slow commands on the Redis."),
        panel("Duration of calls by kind, p95", "s", [('histogram_quantile(0.95, sum by (op, le) (rate(ringq_store_op_seconds_bucket{JOB,shard="$shard"}RATE)))', "{{op}}")],
              "stats, list and ids grow with the number of jobs; enqueue, claim and settle do not."),
        panel("Errors", "ops", [('sum by (op, reason) (rate(ringq_store_errors_total{JOB,shard="$shard"}RATE))', "{{op}} {{reason}}")],
              "BREAKER_OPEN: calls fail at once, because the shard is down. STORE_FULL: no room. OUTCOME_UNKNOWN: no answer in time."),
        panel("Up, by server", "short", [('ringq_shard_up{JOB,shard="$shard"}', "{{instance}}")],
              "Only one server at 0: its way to the shard is broken, not the shard."),
        panel("Openings of the circuit breaker", "short", [('sum by (instance) (increase(ringq_shard_breaker_opened_total{JOB,shard="$shard"}RATE))', "{{instance}}")],
              "Each is an outage that a server noticed. Many short ones: the network, or a Redis that is restarted again and again."),
        panel("Losses of data", "short", [('sum by (instance) (increase(ringq_shard_data_lost_total{JOB,shard="$shard"}RATE))', "{{instance}}")],
              "The shard came back empty, or with an older copy: accepted jobs are gone. Look into its log and its settings of persistence.", limits=(None, 1)),
    ]),
    ("Room", 8, [
        panel("Size and limit", "bytes", [('max(ringq_store_bytes{JOB,shard="$shard"})', "used"), ('max(ringq_store_max_bytes{JOB,shard="$shard"})', "full at")],
              "Full at: maxmemory of a Redis (without it there is no line); of a SQLite shard, what it uses and what its disk has free."),
        panel("Fullness", "percentunit", [('max(ringq_store_bytes{JOB,shard="$shard"} / ringq_store_max_bytes{JOB,shard="$shard"})', "full")],
              "Used memory / maxmemory of a Redis; used / (used + free) of a SQLite shard. At 100 % new jobs are refused with STORE_FULL; settling goes on.", limits=(0.85, 0.95)),
        panel("Clock skew, by server", "s", [('ringq_shard_clock_skew_seconds{JOB,shard="$shard"}', "{{instance}}")],
              "Positive: the clock of the shard is ahead of the server. The clock of the shard decides what is due."),
    ]),
], variable("shard", "Shard", "label_values(ringq_shard_up{job=\"$job\"}, shard)"))


def main():
    here = Path(__file__).resolve().parent
    directories = [Path(sys.argv[1])] if len(sys.argv) > 1 else [here, here.parent / "chart/files/dashboards"]
    for name, content in (("overview", OVERVIEW), ("topic", TOPIC), ("shard", SHARD)):
        for directory in directories:
            (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
