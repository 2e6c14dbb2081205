"""The probes of the stages, which run in processes of their own: `MODULE:FUNCTION`, with texts as arguments. They speak as
the check's probes do (vgpu_check/probes/talk.py)."""
