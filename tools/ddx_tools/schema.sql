-- The evidence store: rows parsed out of one bundle. Raw files are the truth; all of this can be rebuilt from them.
-- Rank, host, group and time are NULL where no file says them. Text comes from the job and is to be read as data.
-- The comment behind a column is its documentation: the store attaches it to the column (duckdb_columns()).

CREATE TABLE ranks (
    host            VARCHAR,  -- host name the process was seen on
    job             VARCHAR,  -- identity of the job on this host: "<launcher>:<pid>" of its root process
    role            VARCHAR,  -- rank | launcher | dataloader_worker | compile_worker | helper | unreadable | gone
    rank            INTEGER,  -- global rank; of the owning rank for workers; NULL if nothing says it
    local_rank      INTEGER,  -- rank on its host
    world_size      INTEGER,  -- number of ranks the job expects
    pid             INTEGER,  -- process id in ddx's pid namespace
    ppid            INTEGER,  -- parent process id
    launcher        VARCHAR,  -- torchrun | spawn | accelerate | deepspeed | mpirun | ray | slurm | env
    state           VARCHAR,  -- kernel state letter: R S D T t Z, as in /proc/<pid>/stat
    cpu_percent     DOUBLE,   -- CPU used since the process started, percent of one core
    wall_s          DOUBLE,   -- seconds since the process started
    rss_bytes       BIGINT,   -- resident memory, bytes
    master          VARCHAR,  -- MASTER_ADDR:MASTER_PORT as the process has it
    command         VARCHAR,  -- command line, secrets redacted
    cwd             VARCHAR,  -- working directory
    stdout          VARCHAR,  -- where file descriptor 1 goes (path, pipe:[n], /dev/pts/n)
    stderr          VARCHAR,  -- where file descriptor 2 goes
    run_dir         VARCHAR,  -- DDX_RUN_DIR, if `ddx run` started the job
    python          VARCHAR,  -- interpreter executable
    debug           VARCHAR,  -- JSON object of the debug features that are on (variable: value)
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE stack_threads (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank that owns the process
    pid             INTEGER,  -- process id
    role            VARCHAR,  -- role of the process, as in ranks
    snapshot        INTEGER,  -- 1, 2, …: which look
    taken_s         DOUBLE,   -- wall clock of the look, seconds since the epoch
    tid             BIGINT,   -- kernel thread id (or Python's thread id where the kernel's is unknown)
    thread          VARCHAR,  -- thread name
    is_main         BOOLEAN,  -- the thread that runs the training program
    running         BOOLEAN,  -- py-spy: the thread was on a CPU
    owns_gil        BOOLEAN,  -- py-spy: the thread held the GIL
    state           VARCHAR,  -- kernel state letter of the thread
    wchan           VARCHAR,  -- kernel function it sleeps in
    syscall         VARCHAR,  -- system call it is in, by name if known
    blocked_on      VARCHAR,  -- what that call's file descriptor is (pipe:[n], socket:[n], path)
    blocked_s       DOUBLE,   -- seconds since the thread last ran, before anything of ours touched it
    moved           BOOLEAN,  -- it ran between this look and the one before (context switches or CPU time)
    switched        BOOLEAN,  -- it went to sleep and woke between the two looks: more than burning CPU in one place
    activity        VARCHAR,  -- class of what it does: an `activity` of knowledge/frames.yaml
    operation       VARCHAR,  -- the collective or point-to-point operation, in torch's words
    contexts        VARCHAR,  -- JSON list: what encloses it (checkpoint, fsdp, ddp, pipeline, dataloader, …)
    group_hint      VARCHAR,  -- what the frames betray of the process group (mesh axis, wrapper), else NULL
    user_file       VARCHAR,  -- innermost frame of the user's program: file
    user_line       INTEGER,  -- line
    user_function   VARCHAR,  -- function, qualified by its class where the source shows it
    user_source     VARCHAR,  -- text of the line
    user_stack      VARCHAR,  -- JSON list of [file, line, function] of all user frames, outermost first
    frames_key      VARCHAR,  -- identity of the whole normalised stack
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE stack_frames (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    snapshot        INTEGER,  -- which look
    tid             BIGINT,   -- thread id
    depth           INTEGER,  -- 0 is the innermost frame
    file            VARCHAR,  -- full file name
    module          VARCHAR,  -- path from the package root ("torch/distributed/distributed_c10d.py"), for matching
    line            INTEGER,  -- line
    function        VARCHAR,  -- function, qualified by its class where the source shows it
    is_user         BOOLEAN,  -- the frame belongs to the user's program, not to a library
    code            VARCHAR   -- text of the line, if the source could be read
);

CREATE TABLE outputs (
    host            VARCHAR,  -- host name
    path            VARCHAR,  -- file that ranks write their standard output to
    stepped         BOOLEAN   -- it printed further steps between the first and the last look; NULL: it names none
);

CREATE TABLE unread (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank whose process could not be read
    pid             INTEGER,  -- its process id
    reason          VARCHAR,  -- why not, in words
    remedy          VARCHAR   -- what to do about it
);

CREATE TABLE sources (
    host            VARCHAR,  -- host name
    file            VARCHAR,  -- full file name as the frames have it
    text            VARCHAR,  -- the program text, bounded; read when the stacks were taken
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE fr_dumps (
    dump            BIGINT,   -- identity of the dump: the same whenever it is read
    host            VARCHAR,  -- host name, NULL if the file does not say
    rank            INTEGER,  -- global rank, from the agent or the file name
    source          VARCHAR,  -- raw file of the bundle
    origin          VARCHAR,  -- agent | file | endpoint | exception | exit
    attempt         VARCHAR,  -- what files of one attempt of the job share: their directory and the name around the rank
    version         VARCHAR,  -- format version of the dump
    library         VARCHAR,  -- version of NCCL or its like, NULL if not recorded
    taken_ns        BIGINT,   -- wall clock when it was taken, ns since the epoch; NULL if unknown
    latest_ns       BIGINT,   -- the latest time that the dump itself mentions: it was taken then or later
    entries         INTEGER,  -- number of entries in the dump
    first_record    BIGINT,   -- smallest record id: above 0 means older entries are gone
    last_record     BIGINT,   -- largest record id
    with_frames     BOOLEAN,  -- entries carry Python frames
    only_active     BOOLEAN,  -- completed entries were left out
    backend         VARCHAR,  -- nccl | gloo | xccl | …, from the entries
    world_size      INTEGER   -- as far as a group or the agent says it
);

CREATE TABLE fr_groups (
    group_id        BIGINT PRIMARY KEY,  -- identity of the process group, made of its key
    group_key       VARCHAR,  -- identity across ranks: name and members
    name            VARCHAR,  -- process group name
    description     VARCHAR,  -- description ("default_pg", "mesh_tp", …)
    members         INTEGER[] -- global ranks in group order; NULL if no dump lists them
);

CREATE TABLE fr_memberships (
    membership      BIGINT,   -- identity of one dump's view of one group
    dump            BIGINT,   -- the dump
    group_id        BIGINT,   -- the group
    pg_id           VARCHAR,  -- the process's own counter of groups, not comparable between ranks
    last_enqueued   BIGINT,   -- sequence number of the last collective this rank enqueued
    last_started    BIGINT,   -- sequence number of the last collective that started on its device
    last_completed  BIGINT    -- sequence number of the last collective this rank completed
);

CREATE TABLE fr_calls (
    call            BIGINT PRIMARY KEY,  -- identity of the call: equal calls of all ranks share it
    backend         VARCHAR,  -- nccl, gloo, …
    op              VARCHAR,  -- all_reduce, broadcast, send, … without the backend's prefix
    is_p2p          BOOLEAN,  -- point-to-point operation
    peer            VARCHAR,  -- "1->2" of a point-to-point operation, group-local ranks
    input_sizes     VARCHAR,  -- JSON list of shapes, elements
    input_dtypes    VARCHAR,  -- JSON list
    output_sizes    VARCHAR,  -- JSON list of shapes, elements
    output_dtypes   VARCHAR,  -- JSON list
    input_splits    VARCHAR,  -- JSON list: elements of dimension 0 to each rank, of an all_to_all (format 2.11)
    output_splits   VARCHAR,  -- JSON list: elements of dimension 0 from each rank
    timeout_ms      BIGINT    -- limit of the operation
);

CREATE TABLE fr_sites (
    site            BIGINT PRIMARY KEY,  -- identity of the call path through the user's program
    user_file       VARCHAR,  -- call site: innermost user frame
    user_line       INTEGER,  -- its line
    user_function   VARCHAR,  -- its function
    path            VARCHAR,  -- identity of the whole user call path, innermost first
    contexts        VARCHAR   -- JSON list: what encloses the call (checkpoint, fsdp, ddp, evaluation, …)
);

CREATE TABLE fr_entries (
    membership      BIGINT,   -- the dump and the group
    record_id       BIGINT,   -- per process, not comparable between ranks
    seq             BIGINT,   -- collective sequence number in its group
    p2p_seq         BIGINT,   -- point-to-point sequence number
    op_id           BIGINT,   -- operations of any kind in this group so far
    call            BIGINT,   -- what was called
    site            BIGINT,   -- where from; NULL without frames
    state           VARCHAR,  -- scheduled | started | completed as recorded (Gloo: always scheduled)
    done            BOOLEAN,  -- completed or retired
    created_ns      BIGINT,   -- wall clock when it was enqueued, ns since the epoch
    started_ns      BIGINT,   -- wall clock when its start was noticed
    completed_ns    BIGINT,   -- wall clock when completion was noticed
    duration_ms     DOUBLE    -- time on the device, where timing was on
);

CREATE VIEW groups AS
    SELECT d.host, d.rank, g.group_key, g.name, g.description, g.members, m.last_enqueued, m.last_started,
        m.last_completed, d.source
    FROM fr_memberships m JOIN fr_groups g USING (group_id) JOIN fr_dumps d USING (dump);

CREATE VIEW collectives AS
    SELECT d.host, d.rank, d.source, e.record_id, g.group_key, e.seq, e.p2p_seq, e.op_id, c.is_p2p, c.backend, c.op,
        c.peer, c.input_sizes, c.input_dtypes, c.output_sizes, c.output_dtypes, e.state, e.done, e.created_ns,
        e.started_ns, e.completed_ns, e.duration_ms, c.timeout_ms, s.user_file, s.user_line, s.user_function,
        s.path AS site
    FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN fr_groups g USING (group_id)
        JOIN fr_dumps d USING (dump) JOIN fr_calls c USING (call) LEFT JOIN fr_sites s USING (site);

CREATE TABLE log_events (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank, if the line, its prefix or the file name says it
    pid             INTEGER,  -- process id, if the text says it
    kind            VARCHAR,  -- traceback | failure_summary | exit | watchdog | gloo | signature | step | fatal_stack | error_file
    code            VARCHAR,  -- signature id, exception type or signal name
    text            VARCHAR,  -- the message, bounded
    attempt         INTEGER,  -- restart attempt, if the text says it
    time_s          DOUBLE,   -- wall clock of the line, seconds since the epoch, in its host's clock
    exit_code       INTEGER,  -- exit code; negative: killed by that signal
    file            VARCHAR,  -- user frame of a traceback or a fatal stack: file
    line            INTEGER,  -- line
    function        VARCHAR,  -- function
    code_line       VARCHAR,  -- text of that line
    frames          VARCHAR,  -- JSON list of "file:line function", outermost first
    details         VARCHAR,  -- JSON object: named groups of the signature, chained causes, seq, op, …
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- first line in that file, 1-based
);
