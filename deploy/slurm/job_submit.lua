-- SLURM's job_submit/lua: a job that names its model in its comment gets the GPU or slice it needs.
--
--   sbatch --comment 'dippm: model=net.onnx batch=8 slo_ms=20' job.sh
--
-- It asks a service of DIPPM on this machine (`dippm serve --root /models`), for two seconds at
-- most, since slurmctld waits meanwhile; what is not known by then is being worked on there, and
-- the next submission finds it. A job that asks for GPUs itself is left alone. Without an answer
-- a job passes as it is, with a message to its user; `fails_closed = true` refuses it.
--
-- Put it where slurm.conf is, with JobSubmitPlugins=lua; curl has to be there. Types of GPUs are
-- names of the site: `types` says yours.

dippm = {
  address = "http://127.0.0.1:8060",
  devices = "A100",
  fails_closed = false,
  types = {}, -- for instance ["a100_1g.5gb"] = "nvidia_a100_1g.5gb"
  -- What runs a command and returns what it printed; the test has its own.
  run = function(command)
    local pipe = io.popen(command)
    if pipe == nil then return "" end
    local text = pipe:read("a")
    pipe:close()
    return text or ""
  end,
}

-- Fields of a comment, and what their values may look like: nothing that a shell or JSON obeys.
local FIELDS = {
  model = "^[%w_][%w_./:@-]*$",
  batch = "^%d+$",
  slo_ms = "^%d+%.?%d*$",
  precision = "^[%w-]+$",
  probability = "^0%.%d+$",
}
local NUMBERS = { batch = true, slo_ms = true, probability = true }

-- Return the question of a comment; nil and a reason if there is none.
function dippm.question(comment)
  local text = string.match(comment or "", "^%s*dippm:%s*(.*)$")
  if text == nil then return nil, nil end
  local found = {}
  for word in string.gmatch(text, "%S+") do
    local name, value = string.match(word, "^([%w_]+)=(.+)$")
    local pattern = name and FIELDS[name]
    if not pattern or #value > 500 or not string.match(value, pattern) then
      return nil, "no field of dippm: " .. string.sub(word, 1, 40)
    end
    found[name] = value
  end
  if found.model == nil then return nil, "the comment names no model" end
  local model = found.model
  local is_name = string.match(model, "^[%a-]+:") ~= nil
  local parts = {
    is_name and string.format('"model":"%s"', model)
      or string.format('"model":{"path":"%s"}', model),
    '"format":"slurm"',
    string.format('"devices":"%s"', dippm.devices),
  }
  for _, name in ipairs({ "batch", "slo_ms", "precision", "probability" }) do
    if found[name] then
      parts[#parts + 1] = NUMBERS[name] and string.format('"%s":%s', name, found[name])
        or string.format('"%s":"%s"', name, found[name])
    end
  end
  return "{" .. table.concat(parts, ",") .. "}", nil
end

-- Return the generic resource that the service names; nil and a reason if it names none.
function dippm.resource(question)
  local command = string.format(
    "curl --silent --max-time 2 --header 'Content-Type: application/json' --data '%s' '%s/v1/request?wait_s=1.5'",
    question, dippm.address)
  local answer = dippm.run(command)
  local kind, count = string.match(answer, "%-%-gres=gpu:([%w._-]+):(%d+)")
  if kind == nil then
    local why = string.match(answer, '"message":"([^"]*)"')
    return nil, why or "the service has no answer yet"
  end
  return string.format("gres/gpu:%s:%s", dippm.types[kind] or kind, count), nil
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local question, why = dippm.question(job_desc.comment)
  if question == nil and why == nil then return slurm.SUCCESS end
  if job_desc.tres_per_node ~= nil or job_desc.tres_per_job ~= nil then return slurm.SUCCESS end
  local resource
  if question ~= nil then resource, why = dippm.resource(question) end
  if resource ~= nil then
    job_desc.tres_per_node = resource
    slurm.log_user("dippm: %s", resource)
    return slurm.SUCCESS
  end
  slurm.log_user("dippm gave no resources: %s", why)
  if dippm.fails_closed then return slurm.ERROR end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
