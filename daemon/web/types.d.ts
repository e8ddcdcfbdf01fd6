// What the modules in static/ are sent, for their checks (tsconfig.json): this is neither served nor shipped.
// Times are seconds since 1970 by onesd's clock, in reports seconds since the beginning of the trace.

/** What an element is made of; what is false or missing is left out. */
type Child = Node | string | false | null | undefined | Child[];

/** What onesd tells a page: daemon/onesd/page/. */
declare namespace Page {
  /** The first message of a stream. */
  interface Hello {
    user: string;
    operator: boolean;
  }

  interface State {
    serial: number;
    now: number;
    /** What is the same for everybody ... */
    common: Part;
    /** ... and what this user alone is told. */
    own: Part;
  }

  /** What leads on from the state of that serial. */
  interface Change extends State {
    from: number;
  }

  type Message = { hello: Hello } | { ended: true } | Change;

  interface Part {
    tables: { [Name in keyof Tables]?: { put: Record<string, Tables[Name]>; gone: string[] } };
    values: Partial<Values>;
  }

  /** The row of each table. */
  interface Tables {
    nodes: Node;
    history: Point;
    jobs: Job;
    plan: Decision;
    shares: Share;
    reasons: Reason;
    events: Event;
  }

  interface Values {
    cluster: Cluster;
    problems: string[];
    /** Told to operators alone. */
    policies?: string[];
  }

  interface Cluster {
    /** `seconds` it took, and one is begun `every` so many; number 0: none has ended yet. */
    round: { number: number; at: number; seconds: number; outcome: string; every: number };
    mode: "observe" | "act";
    paused: { by: string; reason: string } | null;
    policy: string;
    /** The configuration's policy. */
    configured: string;
    version: string;
    /** Of the plan to the best possible one, as a share; null: not known. */
    gap: number | null;
    gpus: { total: number; elastic: number; other: number; free: number; unusable: number; idle: number | null };
    /** So many free GPUs on a node, and of how many nodes. */
    segments: [gpus: number, nodes: number][];
    jobs: { running: number; waiting: number; moving: number };
    gain: Gain;
  }

  /** What elasticity gave since onesd was started. */
  interface Gain {
    since: number | null;
    /** Seconds of completion time. */
    saved: number;
    /** Jobs, now. */
    ahead: number;
    behind: number;
    /** Moves, by kind. */
    begun: Record<string, number>;
    refused: number;
  }

  /** GPUs of elastic jobs and of others, all GPUs, and elastic jobs that wait. */
  type Point = [at: number, elastic: number, other: number, total: number, waiting: number];

  interface Node {
    switch: string;
    type: string;
    gpus: number;
    elastic: number;
    other: number;
    /** Utilisation of each GPU in per cent; null: not known. */
    busy: (number | null)[];
    /** Why nothing new is placed on it. */
    note: string;
    /** Slurm's, in so far as they keep it out of service. */
    states: string[];
  }

  interface Job {
    job: number;
    name: string;
    user: string;
    account: string;
    partition: string;
    state: string;
    /** Which it accepts, as it was submitted: `1-8`. */
    sizes: string;
    nodes: string;
    asked: number;
    gpus: number;
    /** GPUs by node. */
    on: Record<string, number>;
    live: boolean;
    batch: number | null;
    /** A share. */
    done: number | null;
    /** Samples per second. */
    speed: number | null;
    submitted: number;
    /** Seconds until it started; null: it waits. */
    waited: number | null;
    moves: number;
    /** The kind of the move under way. */
    moving: string | null;
    /** Key into the table of reasons. */
    reason: string;
  }

  /** What is told of a job, and when it may start. */
  interface Reason {
    why: string;
    at: number | null;
  }

  type ExplainedJob = Job & Reason;

  interface Decision {
    job: number;
    kind: string;
    gpus: number;
    gpus_after: number;
    target: string | null;
    batch: number | null;
    reason: string;
    /** `begun`, `waits`, `refused: ...` and the like. */
    verdict: string;
  }

  /** What a user of an account had of the last day. */
  interface Share {
    user: string;
    account: string;
    gpu_hours: number;
    /** Of which a run has ended. */
    jobs: number;
    /** Seconds from submission to the first start, on average over those. */
    waited: number | null;
    held: number;
    waiting: number;
  }

  /** A move, or one that was refused, so many times. */
  interface Event {
    job: number;
    user: string;
    at: number;
    ended: number | null;
    kind: string;
    gpus: number | null;
    gpus_after: number;
    reason: string;
    /** `done`, `under way: ...`, `refused: ...` and the like. */
    outcome: string;
    times: number;
  }

  /** `note`: what of an answer may be old. */
  interface Meta {
    schema: number;
    version: string;
    as_of: number;
    note?: string;
  }

  /** All of one job's life, with what is asked of it alone. */
  interface Life {
    meta: Meta;
    now: number;
    job: KnownJob;
    runs: Run[];
    satellites: Satellite[];
    gpu_seconds: number;
    /** Oldest first. */
    moves: Move[];
    /** Why it has the size it has; the first one names it. */
    lines: string[];
    speeds: Speed[];
    course: Course;
    refused: object[];
    staged: string | null;
    /** Oldest first. */
    recoveries: Recovery[];
    requests: object[];
  }

  /** A live job has lost workers, and says what it went on from. */
  interface Recovery {
    run: number;
    generation: number;
    at: number;
    lost: number;
    source: string;
    samples: number | null;
    steps: number | null;
    words: string;
  }

  interface KnownJob {
    job: number;
    name: string;
    user: string;
    account: string;
    sizes: string;
    requested: number;
    submitted: number;
    state: string;
    ended: number | null;
    family: string;
    restarts: number;
    fixed: string;
    report: Progress | null;
  }

  /** What a job last reported of itself. */
  interface Progress {
    samples: number;
    /** Of the whole job. */
    total_samples: number | null;
    /** Global. */
    batch: number | null;
    step_seconds: number | null;
    loss: number | null;
    [other: string]: unknown;
  }

  interface Run {
    run: number;
    started: number;
    ended: number | null;
    elapsed: number;
    gpus: number;
    nodes: string;
    state: string;
    /** What it held until it gave nodes back, or lost them. */
    earlier: { until: number; gpus: number; nodes: string; why: string }[];
    move: string | null;
    reason: string;
  }

  /** A job of the same user's, by which a live job has grown. */
  interface Satellite {
    satellite: number;
    run: number;
    started: number | null;
    ended: number | null;
    elapsed: number;
    gpus: number;
    nodes: string;
    state: string;
    reason: string;
  }

  /** As the journal has it. */
  interface Move {
    at: number;
    kind: string;
    /** GPUs by node; null: it gives all back. */
    target: Record<string, number> | null;
    batch: number | null;
    reason: string;
    /** Empty: under way. */
    outcome: string;
    step: string;
    [other: string]: unknown;
  }

  /** How its training went: times, and each measure at these; null: not reported. */
  interface Course {
    at: number[];
    batch: (number | null)[];
    loss: (number | null)[];
    samples_per_second: (number | null)[];
    /** Of its GPUs, as a share. */
    utilization: (number | null)[];
  }

  /** What a size would bring; without a speed where no allocation can promise it. */
  interface Speed {
    gpus: number;
    note: string;
    batch?: number;
    samples_per_second?: number;
    /** Seconds. */
    time_left?: number;
  }

  /** Who shares a GPU with whom; `shared`: how many GPUs two jobs share, of all users. */
  interface Sharing {
    meta: Meta;
    now: number;
    allowed: boolean;
    /** That there are and were, the latest first. */
    pairs: Pair[];
    /** GPUs that are not shared for a while. */
    closed: { node: string; gpu: number; why: string }[];
    shared: number;
  }

  interface Pair {
    node: string;
    gpu: number;
    since: number;
    ended: number | null;
    jobs: [Half, Half];
    /** Why they were separated. */
    parted: string;
  }

  /** One job of a pair, with its speed there as a share of that alone; all null of another user's. */
  interface Half {
    job: number | null;
    expected: number | null;
    measured: number | null;
  }
}

/** What a report holds: daemon/replay/report.py. */
declare namespace Report {
  interface Data {
    trace: string;
    cluster: string;
    gpus: number;
    jobs_in_all: number;
    /** Of each job so many stretches are drawn at most; 0: all of them. */
    coarse: number;
    end: number;
    jobs: Job[];
    texts: string[];
    runs: Run[];
  }

  /** Family, user, account and sizes are numbers of texts. */
  type Job = [name: string, family: number, user: number, account: number, submitted: number, asked: number, sizes: number];

  interface Run {
    policy: string;
    notes: string[];
    figures: Figures;
    jobs: Lived[];
    /** Completion times, ascending, each for an equal share of the jobs. */
    completions: number[];
    busy: Curve;
    waiting: Curve;
  }

  /** `at_limit`: whether its time limit ended it; `changes` are pairs: seconds since the one before, and GPUs from then on. */
  type Lived = [finished: number, waited: number, resizes: number, at_limit: 0 | 1, changes: number[]];

  /** The seconds from each of its times to the next, and its values. */
  type Curve = [steps: number[], values: number[]];

  /** Those in _s are seconds. */
  interface Figures {
    average_jct_s: number;
    median_jct_s: number;
    p90_jct_s: number;
    p99_jct_s: number;
    makespan_s: number;
    average_wait_s: number;
    gpu_hours: number;
    utilisation: number;
    /** null: the price of a GPU type is not known. */
    cost: number | null;
    resizes_per_job: number;
    lost_to_moves: number;
    decide_s_mean: number;
    decide_s_p99: number;
  }
}
