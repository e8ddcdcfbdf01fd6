--[[
ONES for Slurm at submission: checks what a job says with --elastic against its own request, marks
the job where its user can't change the mark, makes it requeueable, and holds it for onesd while
onesd is alive. Jobs without --elastic are not touched.

Install as job_submit.lua beside slurm.conf, with JobSubmitPlugins=lua. A site that has a
job_submit.lua of its own copies this file to /etc/slurm/ones.lua and adds to its own:

    local ones = dofile("/etc/slurm/ones.lua")                -- at the top

    function slurm_job_submit(job_desc, part_list, submit_uid)
        ... the site's own rules ...
        return ones.submit(job_desc, part_list, submit_uid)   -- last, so that it sees the final job
    end

    function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
        ... the site's own rules ...
        return ones.modify(job_desc, job_rec, part_list, modify_uid)
    end

Where only jobs of some accounts may be elastic, it says so below the first of these lines (without functions of its own,
these two lines are the whole file):

    ones.accounts = { vision = true, robots = true }

slurmctld reads job_submit.lua again when it changes; after a change of ones.lua, touch it.

An error in this file refuses nobody: it is logged and the job passes as a plain one.
]]

local ones = {}

-- Another path is for tests only.
local HEARTBEAT = ONES_HEARTBEAT or "/run/ones/heartbeat"

local MARK = "ONES1:"      -- as in slurm_ext/snapshot.py
local SATELLITE = "ONES1S:" -- as in slurm_ext/snapshot.py
local PENDING, RUNNING = 0, 1  -- as in slurm.h, in the lowest eight bits
local STAGE_MARK = "ONES-STAGE1:"  -- as in slurm_ext/snapshot.py
local LONGEST_TEXT = 256   -- as in policies/sizes.py
local MOST_GPUS = 65536    -- as in policies/sizes.py
local MOST_WRITTEN_OUT = 4096  -- sizes; a list of more is longer than LONGEST_TEXT
local LONGEST_HEARTBEAT = 65536
local CLOCK_SKEW = 60      -- seconds that a heartbeat may lie in the future

-- Slurm gives every unset number one of these; which one depends on the field's width.
local UNSET = { [0xfffe] = true, [0xffff] = true, [0xfffffffe] = true, [0xffffffff] = true }

local function number(value)
    if type(value) ~= "number" or UNSET[value] or value < 0 or value > 0xffffffff then
        return nil
    end
    return math.floor(value)
end

-- A refusal travels as an error with this shape; any other error is a fault of ours.
local function refuse(text, ...)
    error({ refusal = string.format(text, ...) }, 0)
end

-- How the option stood on the command line.
local function shown(text)
    return text == "" and "" or "=" .. text
end

-- Read `4`, `2-16`, `4-16:4` or `1,2,4,8` as policies/sizes.py does, with the same words.
-- Returns the ranges as they are written, as { least, most, step }; most is a size of the range.
-- They are not written out: that of 65536 sizes would hold slurmctld up for some 30 ms.
local function parse_sizes(text)
    if #text > LONGEST_TEXT then
        refuse("--elastic: sizes are longer than %d characters; use a range such as 2-16", LONGEST_TEXT)
    end
    local ranges, named = {}, 0
    for part in (text .. ","):gmatch("([^,]*),") do
        local least, rest = part:match("^(%d+)(.*)$")
        local most, step = least, "1"
        if rest and rest ~= "" then
            most, rest = rest:match("^%-(%d+)(.*)$")
            if rest and rest ~= "" then
                step = rest:match("^:(%d+)$")
            end
        end
        if not (least and most and step) or math.max(#least, #most, #step) > 9 then
            refuse("--elastic: sizes '%s': '%s' is not a size; use 2-16 or 1,2,4,8", text, part)
        end
        least, most, step = tonumber(least), tonumber(most), tonumber(step)
        if math.min(least, most, step) < 1 then
            refuse("--elastic: sizes '%s': '%s' has a zero; sizes start at 1 GPU", text, part)
        elseif least > most then
            refuse("--elastic: sizes '%s': '%s' runs backwards; use %d-%d", text, part, most, least)
        elseif most > MOST_GPUS then
            refuse("--elastic: sizes '%s': '%s' is more than %d GPUs", text, part, MOST_GPUS)
        end
        named = named + math.floor((most - least) / step) + 1
        if named > MOST_GPUS then
            refuse("--elastic: sizes '%s' repeat themselves; use a range such as 2-16", text)
        end
        ranges[#ranges + 1] = { least = least, most = most - (most - least) % step, step = step }
    end
    return ranges
end

local function has(ranges, count)
    for _, range in ipairs(ranges) do
        if range.least <= count and count <= range.most and (count - range.least) % range.step == 0 then
            return true
        end
    end
    return false
end

local function least_and_most(ranges)
    local least, most = ranges[1].least, ranges[1].most
    for _, range in ipairs(ranges) do
        least, most = math.min(least, range.least), math.max(most, range.most)
    end
    return least, most
end

-- The ranges without the sizes above `most`.
local function up_to(ranges, most)
    local kept = {}
    for _, range in ipairs(ranges) do
        if range.least <= most then
            local last = math.min(range.most, most)
            kept[#kept + 1] = { least = range.least, most = last - (last - range.least) % range.step,
                step = range.step }
        end
    end
    return kept
end

-- All sizes of the ranges in ascending order; nil where these are too many to write out.
local function counts_of(ranges)
    local set, counts, named = {}, {}, 0
    for _, range in ipairs(ranges) do
        named = named + (range.most - range.least) / range.step + 1  -- a whole number
    end
    if named > MOST_WRITTEN_OUT then
        return nil
    end
    for _, range in ipairs(ranges) do
        for count = range.least, range.most, range.step do
            if not set[count] then
                set[count], counts[#counts + 1] = true, count
            end
        end
    end
    table.sort(counts)
    return counts
end

local function write_range(first, last, step)
    return string.format(step > 1 and "%d-%d:%d" or "%d-%d", first, last, step)
end

-- The sizes as policies/sizes.py writes them, unless that is a list longer than `instead`.
local function write_sizes(ranges, instead)
    local only = #ranges == 1 and ranges[1]
    if only and only.most - only.least > only.step then
        return write_range(only.least, only.most, only.step)
    end
    local counts = counts_of(ranges)
    if not counts then
        return instead
    end
    local first, last = counts[1], counts[#counts]
    if #counts == 1 then
        return string.format("%d", first)
    end
    local step = counts[2] - first
    local even = #counts > 2 or step == 1
    for index = 2, #counts do
        even = even and counts[index] - counts[index - 1] == step
    end
    if even then
        return write_range(first, last, step)
    end
    local list = table.concat(counts, ",")
    return #list <= #instead and list or instead
end

-- The GPUs that a TRES string such as gres/gpu:v100:4 or gres/gpu=2 asks for, and their type.
local function gpus_in(tres, option)
    local total, kind
    for item in (tres or ""):gmatch("[^,]+") do
        local rest = item:gsub("^gres[/:]", ""):match("^gpu(.*)$")
        if rest and (rest == "" or rest:match("^[:=]")) then
            local this, count = rest:match("^:([^:=]+)[:=](%d+)$")
            count = count or rest:match("^[:=](%d+)$")
            if not count then
                this, count = rest:match("^:([^:=]+)$"), "1"
                if rest ~= "" and not this then
                    refuse("--elastic: can't read '%s' of %s; write a number of GPUs, e.g. gpu:4", item, option)
                end
            end
            if total and kind ~= this then
                refuse("--elastic: '%s' asks for two types of GPU, but an elastic job runs on one; "
                    .. "name one type, e.g. --gres=gpu:%s:4", tres, this or kind)
            end
            total, kind = (total or 0) + tonumber(count), this
        end
    end
    return total, kind
end

-- What the job asks for without us: GPUs at its fewest and at its most nodes, those of each node (0
-- where it doesn't ask so), their type, and its fewest nodes.
local function own_request(job)
    local least_nodes = number(job.min_nodes) or 0
    local tasks, per_node = number(job.num_tasks) or 0, number(job.ntasks_per_node) or 0
    if least_nodes < 1 then
        least_nodes = (tasks > 0 and per_node > 0) and math.ceil(tasks / per_node) or 1
    end
    local most_nodes = math.max(least_nodes, number(job.max_nodes) or least_nodes)

    if gpus_in(job.tres_per_socket, "--gpus-per-socket") then
        refuse("--elastic can't resize a job that asks by --gpus-per-socket; use --gpus-per-node or --gpus")
    end
    -- At any change of such a job, a requeue's included, slurmctld reckons its tasks anew, as one.
    if (number(job.ntasks_per_gpu) or number(job.ntasks_per_tres) or 0) > 0 then  -- Slurm has both names
        refuse("--elastic can't resize a job that asks by --ntasks-per-gpu; use --ntasks: where it is the number of "
            .. "GPUs, the job has one task for each GPU at every size")
    end
    local gpus, kind = gpus_in(job.tres_per_job, "--gpus")
    if gpus then
        -- GPUs per node, which a reshape writes beside --gpus, would have Slurm derive tasks per node
        -- from those per task, and these nobody can change again.
        local each = gpus_in(job.tres_per_task, "--gpus-per-task")
        if each then
            refuse("--elastic can't resize a job that asks by --gpus and --gpus-per-task at once; "
                .. "drop --gpus and say --ntasks=%d", math.max(1, math.floor(gpus / math.max(1, each))))
        end
        return gpus, gpus, 0, kind, least_nodes
    end
    gpus, kind = gpus_in(job.tres_per_node, "--gres or --gpus-per-node")
    if gpus then
        return gpus * least_nodes, gpus * most_nodes, gpus, kind, least_nodes
    end
    gpus, kind = gpus_in(job.tres_per_task, "--gpus-per-task")
    if gpus then
        if tasks < 1 then
            tasks = least_nodes * math.max(per_node, 1)
        end
        return gpus * tasks, gpus * tasks, 0, kind, least_nodes
    end
    return 0, 0, 0, nil, least_nodes
end

-- What the job's user said of memory and CPUs, for the mark: "no" where he said nothing, of memory
-- the MiB of each node where he said that.
local function named(job)
    local memory = "no"
    if job.min_mem_per_node then
        memory = string.format("%d", job.min_mem_per_node)
    elseif job.min_mem_per_cpu or (job.mem_per_tres or "") ~= "" then
        memory = "yes"
    end
    local cpus = number(job.cpus_per_task) or number(job.pn_min_cpus) or (job.cpus_per_tres or "") ~= ""
        or (job.tres_per_task or ""):match("cpu")
    return memory, cpus and "yes" or "no"
end

-- What onesd last said, or nil where it said nothing that can be read:
-- hold (whether to hold new jobs now) and the GPUs of each partition.
local function read_heartbeat(now)
    local file = io.open(HEARTBEAT, "r")
    local text = file and file:read(LONGEST_HEARTBEAT)
    if file then
        file:close()
    end
    if not text or not text:match("^ones%-heartbeat 1\n") then
        return nil
    end
    local time = tonumber(text:match("\ntime ([%d.]+)\n"))
    local lifetime = tonumber(text:match("\nlifetime ([%d.]+)\n"))
    local said = { hold = false, partitions = {} }
    if time and lifetime and text:match("\nhold yes\n") then
        said.hold = now - time <= lifetime and time - now <= CLOCK_SKEW
    end
    for name, total, types in text:gmatch("\npartition (%S+) (%d+) ?([^\n]*)") do
        local partition = { total = tonumber(total), types = {} }
        for kind, count in types:gmatch("([^,=%s]+)=(%d+)") do
            partition.types[kind] = tonumber(count)
        end
        said.partitions[name] = partition
    end
    return said
end

-- The partitions that the job may run in: what it names, else the default.
local function partitions_of(job, part_list)
    local names = {}
    for name in (job.partition or ""):gmatch("[^,]+") do
        names[#names + 1] = name
    end
    if #names == 0 then
        for name, partition in pairs(part_list or {}) do
            if partition.flag_default == 1 then
                names[#names + 1] = name
            end
        end
    end
    return names
end

-- Refuse sizes that none of the job's partitions can hold, as far as onesd has said what they have.
local function check_partition(job, part_list, heartbeat, text, ranges, kind)
    local _, largest = least_and_most(ranges)
    local names, most = partitions_of(job, part_list), -1
    for _, name in ipairs(names) do
        local partition = heartbeat and heartbeat.partitions[name]
        if not partition then
            return
        end
        most = math.max(most, kind and next(partition.types) and (partition.types[kind] or 0) or partition.total)
    end
    if most < 0 or largest <= most then
        return
    end
    local fitting = up_to(ranges, most)
    refuse("--elastic%s: up to %d GPUs, but partition %s has %d%s; %s", shown(text), largest,
        table.concat(names, ","), most, kind and " of type " .. kind or "",
        #fitting > 0 and "use --elastic=" .. write_sizes(fitting, "1-" .. most)
            or "choose another partition")
end

-- What the SPANK plugin says under that name: ELASTIC is "" for a bare --elastic, nil without one.
-- Slurm hands the SPANK environment over as a list of NAME=VALUE, some versions as a map.
local function spank_value(job, name)
    for key, entry in pairs(job.spank_job_env or {}) do
        if key == name then
            return tostring(entry)
        end
        local value = type(entry) == "string" and entry:match("^" .. name .. "=(.*)$")
        if value then
            return value
        end
    end
    return nil
end

local function is_array(job)
    return job.array_inx and job.array_inx ~= ""
end

-- The options, by Slurm's number for them, that keep others' jobs off the job's nodes.
local EXCLUSIVE_OF = { [2] = "--exclusive=user", [3] = "--exclusive=mcs", [4] = "--exclusive=topo" }

-- Refuse what decides by itself which nodes, or how much of them, the job has.
local function check_nodes(job)
    if job.req_nodes and job.req_nodes ~= "" then
        refuse("--elastic leaves the choice of nodes to onesd, which --nodelist=%s forbids; "
            .. "use --exclude or --constraint instead", job.req_nodes)
    end
    -- onesd pins the job to nodes, on which Slurm would not start it then.
    local close = number(job.contiguous) == 1 and "--contiguous"
        or (number(job.req_switch) or 0) > 0 and "--switches"
    if close then
        refuse("--elastic leaves the choice of nodes to onesd, which takes nodes close together where it can; drop %s",
            close)
    end
    -- Slurm says the last two to scripts from 26.05 on, and nothing of them where they are unset.
    local whole = number(job.shared) == 0 and "--exclusive" or number(job.core_spec) and "--core-spec"
        or number(job.thread_spec) and "--thread-spec"
    if whole then
        refuse("--elastic says how many GPUs a job has, but %s gives it all of its nodes; drop %s, "
            .. "and ask for sizes of whole nodes", whole, whole)
    end
    local alone = EXCLUSIVE_OF[job.shared]
    if alone then
        refuse("--elastic lets onesd put a job beside those of others, which %s forbids; drop it, "
            .. "and ask for sizes of whole nodes", alone)
    end
end

-- Refuse --mincpus, which is lost when the CPUs of another size are written. sbatch itself raises it
-- to the CPUs of a task, and what the tasks of a node have anyway it does not change.
local function check_cpus(job)
    local each = math.max(1, number(job.cpus_per_task) or 0,
        tonumber((job.tres_per_task or ""):match("cpu[:=](%d+)")) or 0)
    local least = number(job.pn_min_cpus) or 0
    if least > each * math.max(1, number(job.ntasks_per_node) or 0) then
        refuse("--elastic has other CPUs on each node at each size, which --mincpus=%d does not follow; "
            .. "use --cpus-per-task or --cpus-per-gpu", least)
    end
end

-- Whether an #SBATCH line says --deadline. No job_submit plugin in Lua is told of one that stands on
-- the command line.
local function says_deadline(script)
    for line in script:gmatch("[^\n]+") do
        if line:match("^#SBATCH%s") then
            line = line:gsub("%s#.*", "") .. " "
            if line:match("%s%-%-deadline[%s=]") then
                return true
            end
        elseif line:match("^%s*[^%s#]") then
            return false  -- sbatch reads no further than the first command
        end
    end
    return false
end

-- Refuse kinds of jobs that onesd can't move.
local function check_kind(job)
    if number(job.het_job_offset) then
        refuse("--elastic can't resize a heterogeneous job: Slurm starts its parts together at fixed "
            .. "sizes; submit one job of one kind")
    end
    if not job.script or job.script == "" then
        refuse("--elastic is for batch jobs: an interactive job can't be requeued; "
            .. "put the commands in a script and use sbatch --elastic")
    end
    if is_array(job) and spank_value(job, "STAGE_IN") then
        refuse("--stage-in brings the data of one job to its nodes, not those of a job array; "
            .. "drop one of the two")
    end
    if number(job.requeue) == 0 then
        refuse("--elastic resizes a job by requeueing it, which --no-requeue forbids; drop one of the two")
    end
    if says_deadline(job.script) then
        refuse("--elastic restarts a job, and --deadline has Slurm cancel it then; leave one out")
    end
    check_nodes(job)
    check_cpus(job)
end

-- The job that stages data in for this one, for the mark; "" where there is none, or another user's.
-- slurm.jobs is up to a second old and may not have it yet; onesd looks at both jobs again.
local function stage_of(job, uid)
    local id = (spank_value(job, "STAGE_IN") or ""):match("^%d%d?%d?%d?%d?%d?%d?%d?%d?$")
    local other = id and slurm.jobs and slurm.jobs[id]
    if not id or (other and other.user_id ~= uid) then
        return ""
    end
    return ";stage=" .. id
end

-- The accounts that the site lets opt in, in words; nil where it lets this one, or all.
-- In any case of letters: slurmctld lowers a job's account only after this script has seen it.
local function others_may(account)
    if not ones.accounts then
        return nil
    end
    local wanted, names = (account or ""):lower(), {}
    for name, allowed in pairs(ones.accounts) do
        if allowed and tostring(name):lower() == wanted then
            return nil
        end
        names[#names + 1] = name
    end
    table.sort(names)
    return table.concat(names, ", ")
end

-- Refuse what is not for the job's account.
local function check_account(job)
    local names = others_may(job.account or job.default_account)
    if names then
        refuse("--elastic is for jobs of the accounts %s here; drop it, or choose one with -A", names)
    end
end

-- Decide on an elastic job; returns what to write. Refuses by raising, changes nothing.
local function assess(job, part_list, value)
    check_kind(job)
    local text = value == "(null)" and "" or value
    local request, most, per_node, kind, nodes = own_request(job)
    if text ~= "" then
        parse_sizes(text)  -- so that a bad value is named before anything else
    end
    if request < 1 then
        refuse("--elastic%s: the job asks for no GPUs; say how many it would have without it, "
            .. "e.g. --gpus=4 or --gres=gpu:4", shown(text))
    end
    local ranges = parse_sizes(text ~= "" and text or string.format("1-%d", most))
    local smallest, largest = least_and_most(ranges)
    if not has(ranges, request) then
        local low, high = math.min(smallest, request), math.max(largest, request)
        refuse("--elastic=%s: the job itself asks for %d GPUs, which is not one of these sizes; "
            .. "ask for %d, or use --elastic=%d-%d", text, request,
            request > largest and largest or smallest, low, high)
    end
    local each = math.max(per_node, 1)
    local more = math.floor((most - request) / each)
    if more > MOST_WRITTEN_OUT then
        refuse("--elastic%s: the job's --nodes is a range of %d numbers of nodes; give one number of nodes",
            shown(text), more + 1)
    end
    for gpus = request, most, each do
        if not has(ranges, gpus) then
            refuse("--elastic=%s: Slurm may start the job with %d GPUs (its --nodes is a range), which is "
                .. "not one of these sizes; give one number of nodes", text, gpus)
        end
    end
    local now = os.time()
    local heartbeat = read_heartbeat(now)
    check_partition(job, part_list, heartbeat, text, ranges, kind)

    -- A job that its user holds, begins later or lets wait for another job is not held by us: Slurm
    -- starts it when its user said, at its own size, and onesd may resize it from there. (Slurm does
    -- not look at the dependency of a held job: nobody would see that it may start.) The same of the
    -- tasks of an array: until they start they are one job, of one size.
    local waits = number(job.priority) == 0 or (number(job.begin_time) or 0) > now
        or (job.dependency or "") ~= "" or is_array(job)
    local held = not waits and heartbeat ~= nil and heartbeat.hold
    return { sizes = write_sizes(ranges, text), request = request, nodes = nodes, held = held, kind = kind }
end

local function is_mark(comment)
    return comment:sub(1, #MARK) == MARK or comment:sub(1, #SATELLITE) == SATELLITE
        or comment:sub(1, #STAGE_MARK) == STAGE_MARK
end

-- A job that asks to hold GPUs for a live job, by the comment ones-satellite:BASE.RESTARTS.ORDER.
-- It is marked only for the very run of an elastic job that its own user has running, and is in
-- that job's account, QOS and partition no longer than that job may run.
local function admit_satellite(job, submit_uid, number_of, restarts, order)
    local base = slurm.jobs and slurm.jobs[number_of]
    local comment = base and base.admin_comment or ""
    if not base or (base.job_state or 0) % 256 ~= RUNNING or base.user_id ~= submit_uid
            or (base.restart_cnt or 0) ~= tonumber(restarts) or comment:sub(1, #MARK) ~= MARK then
        refuse("a satellite of job %s: you have no elastic job of this number running", number_of)
    end
    if spank_value(job, "ELASTIC") then
        refuse("a satellite of job %s is resized with that job; drop --elastic", number_of)
    end
    for _, field in ipairs({ "account", "qos", "partition" }) do
        if base[field] and base[field] ~= "" then
            job[field] = base[field]  -- a site without accounting has none
        end
    end
    local ends = number(base.end_time)
    if ends and ends > 0 and ends < 0x7fffffff then
        local left = math.floor((ends - os.time()) / 60)
        if left < 1 then
            refuse("a satellite of job %s: that job ends within a minute", number_of)
        end
        job.time_limit = math.min(number(job.time_limit) or left, left)
    end
    job.requeue = 0
    job.admin_comment = string.format("%sbase=%s;restarts=%s;order=%s", SATELLITE, number_of, restarts, order)
end

-- Whether the job is as the SPANK plugin submits stage-in jobs: its variable alone may be anybody's.
local function stages_in(job)
    if spank_value(job, "STAGING") ~= "1" or job.name ~= "ones-stage-in" or number(job.priority) ~= 0 then
        return false
    end
    for _, option in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
        if (job[option] or ""):find("gpu", 1, true) then
            return false
        end
    end
    return true
end

local function admit(job, part_list, submit_uid)
    local comment = job.admin_comment or ""
    if is_mark(comment) then
        comment = ""  -- only this file writes marks; a job desc made by hand may carry a forged one
        job.admin_comment = ""
    end
    if stages_in(job) then  -- of any account: it has no GPUs, and runs as its main job's
        job.admin_comment = comment == "" and STAGE_MARK or STAGE_MARK .. " " .. comment
        return
    end
    local base, restarts, order = (job.comment or ""):match("^ones%-satellite:(%d+)%.(%d+)%.(%d+)$")
    if base then
        return admit_satellite(job, submit_uid, base, restarts, order)
    end
    local value = spank_value(job, "ELASTIC")
    if not value then
        if spank_value(job, "STAGE_IN") then
            refuse("--stage-in needs --elastic: onesd must know when and where the job starts; "
                .. "for a fixed size, give that one, such as --elastic=4")
        end
        return
    end
    check_account(job)
    local verdict = assess(job, part_list, value)
    -- Tasks and nodes as submitted tell "one task per GPU" from "one per node" once the job has run
    -- at a size where both look alike.
    local memory, cpus = named(job)
    local mark = string.format("%ssizes=%s;request=%d;held=%d;tasks=%d;nodes=%d;mem=%s;cpu=%s%s", MARK,
        verdict.sizes, verdict.request, verdict.held and 1 or 0, number(job.num_tasks) or 0,
        verdict.nodes, memory, cpus, stage_of(job, submit_uid))
    if verdict.kind and verdict.kind:match("^[%w_.-]+$") then
        mark = mark .. ";type=" .. verdict.kind  -- a job that shares a GPU asks for no type for a while
    end
    job.admin_comment = comment == "" and mark or mark .. " " .. comment
    job.requeue = 1
    if verdict.held then
        job.priority = 0
    end
    if job.environment then
        job.environment.SLURM_ELASTIC = verdict.sizes
    end
end

-- For slurm_job_submit. Never raises.
function ones.submit(job_desc, part_list, submit_uid)
    local ok, fault = pcall(admit, job_desc, part_list, submit_uid)
    if ok then
        return slurm.SUCCESS
    end
    if type(fault) == "table" and fault.refusal then
        slurm.log_user("%s", fault.refusal)
        return slurm.ERROR
    end
    slurm.log_error("ones: the job passes as a plain one, because job_submit.lua failed: %s", tostring(fault))
    return slurm.SUCCESS
end

-- An administrator who writes an AdminComment on an elastic job must not unmark it by that: the mark
-- stays in front. An empty AdminComment takes it away, which makes the job a plain one.
local function keep_mark(job_desc, job_rec)
    local comment, before = job_desc.admin_comment, job_rec.admin_comment or ""
    if comment and comment ~= "" and is_mark(before) and not is_mark(comment) then
        job_desc.admin_comment = before:match("^%S+") .. " " .. comment
    end
end

-- What was let in by its account is not taken to one that may not opt in.
local function keep_account(job_desc, job_rec)
    local names = job_desc.account and is_mark(job_rec.admin_comment or "") and others_may(job_desc.account)
    if names then
        refuse("an elastic job stays in one of the accounts %s here", names)
    end
end

-- Nodes that an owner chooses for a waiting job would be overwritten at its start. onesd, whose user
-- may have jobs of his own, writes StartTime with them; nodes of a running job are those it keeps.
local function keep_choice(job_desc, job_rec, modify_uid)
    local nodes = job_desc.req_nodes or ""
    local owner = modify_uid ~= 0 and modify_uid == job_rec.user_id
    local elastic = (job_rec.admin_comment or ""):sub(1, #MARK) == MARK
    if nodes ~= "" and owner and elastic and (job_rec.job_state or 0) % 256 == PENDING
            and (number(job_desc.begin_time) or 0) == 0 then
        refuse("an elastic job leaves the choice of nodes to onesd, which ReqNodeList=%s forbids; "
            .. "use ExcNodeList= or Features= instead", nodes)
    end
end

-- For slurm_job_modify. Never raises, and refuses nothing else: a user may change his own job.
function ones.modify(job_desc, job_rec, _, modify_uid)
    local ok, fault = pcall(function()
        keep_choice(job_desc, job_rec, modify_uid)
        keep_account(job_desc, job_rec)
        keep_mark(job_desc, job_rec)
    end)
    if type(fault) == "table" and fault.refusal then
        slurm.log_user("%s", fault.refusal)
        return slurm.ERROR
    end
    if not ok then
        slurm.log_error("ones: job_submit.lua failed at an update: %s", tostring(fault))
    end
    return slurm.SUCCESS
end

-- The hooks that slurmctld looks for, unless the site has its own.
if not slurm_job_submit then
    slurm_job_submit = ones.submit
end
if not slurm_job_modify then
    slurm_job_modify = ones.modify
end

return ones
