// Calls everything there is in the C# binding.
using System;
using System.IO;
using Minbuild;

static class Everything
{
    static void Must(bool holds) { if (!holds) throw new Exception("does not hold"); }

    static void Main()
    {
        string plan = "../../model/trainer.plan";
        var batch = new[] { new Tensor(new float[2 * 784], 2, 1, 28, 28), new Tensor(new long[] { 1, 2 }, 2) };
        var session = new TrainingSession("../../model/checkpoint", plan, 4);
        Must(session.EvalStep(batch)[0].Floats[0] == session.TrainStep(batch)[0].Floats[0]);
        session.OptimizerStep();
        session.LazyResetGrad();
        session.SetProperty("epoch", 3L);
        session.SetProperty("best", 0.5f);
        session.SetProperty("who", "grün");
        Must((long)session.GetProperty("epoch") == 3 && (float)session.GetProperty("best") == 0.5f);
        Must((string)session.GetProperty("who") == "grün" && session.GetProperty("none") == null);
        float[] all = session.ToBuffer(true);
        all[5] = 9;
        session.FromBuffer(all, true);
        Must(session.GetParameter("conv1.weight").Floats[5] == 9);
        session.LearningRate = 0.25f;
        for (int i = 0; i < 2; ++i) session.SaveCheckpoint("all.checkpoint", true);
        session.UpdateParameter("conv1.weight", new Tensor(new float[150], 6, 1, 5, 5));
        byte[] checkpoint = File.ReadAllBytes("all.checkpoint");
        session.LoadCheckpoint(checkpoint);
        checkpoint[checkpoint.Length - 1] ^= 1; // what the fingerprint of another model changes
        session.LoadCheckpoint(checkpoint, true);
        Must(session.GetParameter("conv1.weight").Floats[5] == 9);
        var other = new TrainingSession("all.checkpoint", plan);
        Must(other.StepCount == 1 && other.LearningRate == 0.25f);
        session.ExportModelForInferencing("../../model/inference.template", "out.onnx");
        Refuses(6, () => session.TrainStep(batch[1], batch[0]));
        Refuses(1, () => session.GetParameter("none"));
        Refuses(5, () => session.TrainStep(new Tensor(new float[5 * 784], 5, 1, 28, 28), new Tensor(new long[5], 5)));
        Refuses(2, () => new TrainingSession(new byte[64], new byte[64]));
        session.Dispose();
        other.Dispose();
        Console.WriteLine("all is well");
    }

    static void Refuses(int code, Action call)
    {
        try { call(); }
        catch (TrainerException refused) { if (refused.Code == code && refused.Message != "") return; throw; }
        Must(false);
    }
}
